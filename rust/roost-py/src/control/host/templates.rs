//! The template processes: started once for each list of modules, they fork procs on request.
//!
//! The protocol is fixed and small; `roost._template` speaks the other side. Packets to it: `P` and the texts of the
//! preload; then requests, a letter and who is meant: `F` fork, `S` execute what the memory file says. Packets from it:
//! a letter, three zero bytes, incarnation, proc and process id or status, then text: `R` ready, `T` ready but
//! with threads that a fork would lose, `E` import failed, `F` made (with the pidfd), `N` not made, `X` exited.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use roost_core::agent::{Input, TemplateId};
use roost_core::control::{Bytes, Environ, Exit, TemplateKey};
use roost_core::id::{Incarnation, ProcId};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

use super::launch::output_pipe;
use super::pump::{Pump, Stream};
use super::watch::wait_exit;
use super::{Host, Source};
use crate::control::clock::{now_ns, remaining};
use crate::control::procfs::OomKills;
use crate::control::{descendants, socket};

/// Longest packet from a template: the fixed part and a text.
const PACKET_BYTES_MAX: usize = 16 << 10;

/// The fixed part of a packet.
const HEAD_BYTES: usize = 20;

/// How long a template may take to end at the end of the job; it ends its orphans first.
const END_WAIT_NS: u64 = 3_000_000_000;

#[derive(Debug)]
pub(super) struct TemplateProcess {
    pub(super) socket: OwnedFd,
    pidfd: OwnedFd,
    pub(super) pumps: [Pump; 2],
    sources: Vec<u64>,
    /// Procs whose request it has not answered.
    unanswered: Vec<ProcId>,
}

/// A packet from a template.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    kind: u8,
    incarnation: Incarnation,
    proc: Option<ProcId>,
    /// A process id, or a status of `wait`.
    number: i32,
    text: String,
}

/// A request: `F` to fork, `S` to execute. Also what a cold start finds in its standard input.
pub(super) fn request(letter: u8, incarnation: Incarnation, proc: ProcId) -> [u8; 16] {
    let mut packet = [0; 16];
    packet[0] = letter;
    packet[4..8].copy_from_slice(&incarnation.0.to_le_bytes());
    packet[8..16].copy_from_slice(&proc.get().to_le_bytes());
    packet
}

/// Start a process without copying this one's memory, which may be large.
fn start(
    command: &[String],
    program: &str,
    environ: &Environ,
    (mark, stdin): (&str, OwnedFd),
    [stdout, stderr]: [OwnedFd; 2],
) -> io::Result<u32> {
    let failed = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!("cannot start `{}`: {error}", command.join(" ")),
        )
    };
    let (name, arguments) = command
        .split_first()
        .ok_or_else(|| failed(io::Error::other("the command is empty")))?;
    let (mark_name, mark_value) = mark.split_once('=').expect("a mark is a variable");
    let mut command = Command::new(name);
    // An empty one stands for this process's own: the driver of another host does not know it.
    if !environ.is_empty() {
        let variables = environ
            .iter()
            .map(|(name, value)| (os_string(name), os_string(value)));
        command.env_clear().envs(variables);
    }
    let child = command
        .args(arguments)
        .args(["-c", program])
        .env(mark_name, mark_value)
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(stdout))
        .stderr(Stdio::from(stderr))
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    Ok(child.id())
}

/// The descriptor of a process that cannot have been reaped yet.
fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    let number = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(number, PidfdFlags::empty())?)
}

fn os_string(bytes: &Bytes) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

fn parse(packet: &[u8]) -> Option<Answer> {
    let (head, text) = packet.split_at_checked(HEAD_BYTES)?;
    Some(Answer {
        kind: head[0],
        incarnation: Incarnation(u32::from_le_bytes(head[4..8].try_into().ok()?)),
        proc: ProcId::new(u64::from_le_bytes(head[8..16].try_into().ok()?)),
        number: i32::from_le_bytes(head[16..20].try_into().ok()?),
        text: String::from_utf8_lossy(text).into_owned(),
    })
}

impl Host {
    pub(super) fn start_template(&mut self, id: TemplateId, key: &TemplateKey, environ: &Environ) {
        if let Err(error) = self.try_start_template(id, key, environ) {
            let reason = format!("the template did not start: {error}");
            self.inputs.push_back(Input::TemplateFailed {
                template: id,
                reason,
                stderr: String::new(),
            });
        }
    }

    fn try_start_template(&mut self, id: TemplateId, key: &TemplateKey, environ: &Environ) -> io::Result<()> {
        let (socket, inside) = socket::packet_pair()?;
        let (stdout, stdout_write) = output_pipe()?;
        let (stderr, stderr_write) = output_pipe()?;
        let texts = key.preload.len().to_string();
        let texts = std::iter::once(&texts).chain(&key.preload).chain(&key.sys_path);
        let texts: Vec<&str> = texts.map(String::as_str).collect();
        let packet = format!("P{}", texts.join("\0"));
        socket::send(&socket, packet.as_bytes(), &[self.own.as_fd()])?;
        let mark = descendants::mark(self.config.job, None, Incarnation::default());
        let program = self.bootstrap("_template");
        let outputs = [stdout_write, stderr_write];
        let pid = start(
            &self.config.executable,
            &program,
            environ,
            (&mark, inside),
            outputs,
        )?;
        let pidfd = open_pidfd(pid)?;
        let log = Some(self.log.clone());
        let pumps = [
            Pump::new(stdout, Stream::Out, "template", log.clone()),
            Pump::new(stderr, Stream::Err, "template", log),
        ];
        let mut sources = vec![
            self.register(socket.as_fd(), Source::Template(id), EventFlags::IN)?,
            self.register(pidfd.as_fd(), Source::TemplateEnd(id), EventFlags::IN)?,
        ];
        for pump in &pumps {
            if let Some(pipe) = pump.pipe() {
                sources.push(self.register(pipe, Source::TemplatePipe(id, pump.stream), EventFlags::IN)?);
            }
        }
        self.templates.insert(
            id,
            TemplateProcess {
                socket,
                pidfd,
                pumps,
                sources,
                unanswered: Vec::new(),
            },
        );
        // While the template starts; before it no process was there to be killed.
        self.oom_kills = self.oom_kills.take().or_else(OomKills::find);
        Ok(())
    }

    pub(super) fn order_given(&mut self, id: TemplateId, proc: ProcId) {
        if let (Some(template), Some(running)) = (self.templates.get_mut(&id), self.running.get_mut(&proc)) {
            template.unanswered.push(proc);
            running.ordered_from = Some(id);
        }
    }

    /// Take what a template says.
    pub(super) fn template_readable(&mut self, id: TemplateId) {
        let mut buffer = vec![0; PACKET_BYTES_MAX];
        loop {
            let Some(template) = self.templates.get(&id) else {
                return;
            };
            match socket::receive(&template.socket, &mut buffer) {
                Ok(mut received) if received.length > 0 => {
                    let pidfd = received.descriptors.pop();
                    if let Some(answer) = parse(&buffer[..received.length]) {
                        self.answer(id, answer, pidfd);
                    }
                }
                Err(Errno::AGAIN) => return,
                // Its end follows by its pidfd; until then there is nothing to read any more.
                Ok(_) | Err(_) => {
                    let _ = epoll::delete(&self.epoll, &template.socket);
                    return;
                }
            }
        }
    }

    fn answer(&mut self, id: TemplateId, answer: Answer, pidfd: Option<OwnedFd>) {
        let Answer {
            kind,
            incarnation,
            proc,
            number,
            text,
        } = answer;
        match (kind, proc) {
            (b'R', _) => self.inputs.push_back(Input::TemplateReady(id)),
            (b'T', _) => self.inputs.push_back(Input::TemplateRefused {
                template: id,
                reason: text,
            }),
            (b'E', _) => {
                let stderr = self.template_stderr(id);
                self.inputs.push_back(Input::TemplateFailed {
                    template: id,
                    reason: text,
                    stderr,
                });
            }
            (b'F', Some(proc)) => {
                self.answered(id, proc);
                if self.running(proc, incarnation).is_some() {
                    self.forked(proc, incarnation, number.cast_unsigned(), pidfd);
                }
            }
            (b'N', Some(proc)) => {
                self.answered(id, proc);
                if self.running(proc, incarnation).is_some() {
                    self.drop_running(proc);
                    self.inputs.push_back(Input::LaunchFailed {
                        proc,
                        incarnation,
                        reason: text,
                    });
                }
            }
            (b'X', Some(proc)) => {
                let (proc, incarnation) = self.known_as((proc, incarnation));
                if let Some(running) = self.running(proc, incarnation) {
                    running.is_status_told = true;
                }
                self.unreaped
                    .retain(|one| (one.proc, one.incarnation) != (proc, incarnation));
                let exit = Exit::from_wait_status(number);
                self.inputs.push_back(Input::Exited {
                    proc,
                    incarnation,
                    exit,
                });
            }
            _ => self.warn(format!(
                "the template sent an unknown packet {:?}",
                char::from(kind)
            )),
        }
    }

    fn forked(&mut self, proc: ProcId, incarnation: Incarnation, pid: u32, pidfd: Option<OwnedFd>) {
        let known = match pidfd {
            Some(pidfd) => self.process_known(proc, pid, pidfd),
            None => Err(io::Error::other("no file descriptors left for its pidfd")),
        };
        if let Err(error) = known {
            // Without a pidfd its end would not be seen. It ends itself when its control lane closes.
            self.drop_running(proc);
            let reason = error.to_string();
            self.inputs.push_back(Input::LaunchFailed {
                proc,
                incarnation,
                reason,
            });
            return;
        }
        self.look_at_early_end(proc);
    }

    /// A template knows a process as what it was made as.
    fn known_as(&self, made_as: (ProcId, Incarnation)) -> (ProcId, Incarnation) {
        let running = self
            .running
            .iter()
            .find(|(_, running)| running.made_as == made_as);
        let running = running.map(|(&id, running)| (id, running.incarnation));
        let unreaped = self.unreaped.iter().find(|one| one.made_as == made_as);
        running
            .or(unreaped.map(|one| (one.proc, one.incarnation)))
            .unwrap_or(made_as)
    }

    fn answered(&mut self, id: TemplateId, proc: ProcId) {
        if let Some(template) = self.templates.get_mut(&id) {
            template.unanswered.retain(|&one| one != proc);
        }
    }

    fn template_stderr(&mut self, id: TemplateId) -> String {
        let Some(template) = self.templates.get_mut(&id) else {
            return String::new();
        };
        template.pumps.iter_mut().for_each(Pump::rest);
        template.pumps[1].tail()
    }

    /// A template's process is gone.
    pub(super) fn template_ended(&mut self, id: TemplateId) {
        self.template_readable(id);
        let stderr = self.template_stderr(id);
        let Some(template) = self.templates.remove(&id) else {
            return;
        };
        self.forget(&template.sources);
        let exit = wait_exit(&template.pidfd);
        let how = match exit {
            Some(Exit::Code(code)) => format!("exited with code {code}"),
            Some(Exit::Signal(signal)) => format!("was killed by signal {signal}"),
            None => "ended".to_owned(),
        };
        let reason = format!("the template {how}");
        self.inputs.push_back(Input::TemplateEnded {
            template: id,
            killed: matches!(exit, Some(Exit::Signal(_))),
            reason,
            stderr,
        });
        for proc in template.unanswered {
            if let Some(running) = self.drop_running(proc) {
                self.inputs.push_back(Input::LaunchLost {
                    proc,
                    incarnation: running.incarnation,
                });
            }
        }
        // Its children are ours now.
        self.reap_again();
    }

    /// End all templates; each ends its orphans first.
    pub(super) fn end_templates(&mut self) {
        let templates: Vec<TemplateProcess> = self.templates.drain().map(|(_, template)| template).collect();
        for template in templates {
            let TemplateProcess { socket, pidfd, .. } = template;
            // The end of this socket is its order to end.
            drop(socket);
            let until_ns = now_ns() + END_WAIT_NS;
            let mut set = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
            if !matches!(rustix::event::poll(&mut set, Some(&remaining(until_ns))), Ok(1..)) {
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
            let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
        }
    }
}
