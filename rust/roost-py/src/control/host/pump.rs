//! Reading what a process prints.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use roost_core::agent::TemplateId;
use roost_core::id::ProcId;
use rustix::event::epoll;
use rustix::io::Errno;

use super::Host;
use crate::control::log::Log;
pub(super) use crate::control::log::Stream;

/// Read in one turn, so that a proc that prints all the time does not hold up the rest.
const TURN_BYTES_MAX: usize = 64 << 10;

/// Read at a death: more than a pipe holds, so all that was printed before it.
const REST_BYTES_MAX: usize = 1 << 20;

/// A line is cut here, so that a program that prints none is held in bounds.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What a failure shows of stderr.
const TAIL_BYTES_MAX: usize = 8 << 10;
const TAIL_LINES_MAX: usize = 40;

/// One output of one process.
#[derive(Debug)]
pub(super) struct Pump {
    pipe: Option<OwnedFd>,
    pub(super) stream: Stream,
    label: Arc<str>,
    /// None: the output goes nowhere, only its tail is kept.
    log: Option<Arc<Log>>,
    /// A line without its end.
    partial: Vec<u8>,
    tail: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    More,
    Empty,
    Ended,
}

impl Pump {
    pub(super) fn new(pipe: OwnedFd, stream: Stream, label: &str, log: Option<Arc<Log>>) -> Self {
        Self {
            pipe: Some(pipe),
            stream,
            label: label.into(),
            log,
            partial: Vec::new(),
            tail: Vec::new(),
        }
    }

    /// What it prints from now on is another's.
    pub(super) fn relabel(&mut self, label: &str) {
        self.label = label.into();
    }

    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Read what is there, up to a bound. Gives false at the end of the output.
    fn turn(&mut self, bytes_max: usize) -> bool {
        let mut read = 0;
        let mut buffer = [0; 16 << 10];
        while read < bytes_max {
            let progress = match self.pipe().map(|pipe| rustix::io::read(pipe, &mut buffer)) {
                Some(Ok(0)) | None => Progress::Ended,
                Some(Ok(count)) => {
                    read += count;
                    self.take(&buffer[..count]);
                    Progress::More
                }
                Some(Err(Errno::AGAIN)) => Progress::Empty,
                Some(Err(Errno::INTR)) => Progress::More,
                Some(Err(_)) => Progress::Ended,
            };
            match progress {
                Progress::More => {}
                Progress::Empty => return true,
                Progress::Ended => return false,
            }
        }
        true
    }

    /// Read the rest, the last line too if it has no end.
    pub(super) fn rest(&mut self) {
        self.turn(REST_BYTES_MAX);
        if !self.partial.is_empty() {
            self.partial.push(b'\n');
            let lines = std::mem::take(&mut self.partial);
            self.pass_on(&lines);
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.stream == Stream::Err {
            self.tail.extend_from_slice(bytes);
            if self.tail.len() > 2 * TAIL_BYTES_MAX {
                self.tail.drain(..self.tail.len() - TAIL_BYTES_MAX);
            }
        }
        if self.log.is_none() {
            return;
        }
        self.partial.extend_from_slice(bytes);
        if let Some(end) = self.partial.iter().rposition(|&byte| byte == b'\n') {
            let rest = self.partial.split_off(end + 1);
            let lines = std::mem::replace(&mut self.partial, rest);
            self.pass_on(&lines);
        }
        if self.partial.len() > LINE_BYTES_MAX {
            self.partial.push(b'\n');
            let line = std::mem::take(&mut self.partial);
            self.pass_on(&line);
        }
    }

    fn pass_on(&self, lines: &[u8]) {
        let Some(log) = &self.log else { return };
        let mut bytes = Vec::with_capacity(lines.len() + 64);
        let mut count = 0;
        for line in lines.split_inclusive(|&byte| byte == b'\n') {
            bytes.push(b'[');
            bytes.extend_from_slice(self.label.as_bytes());
            bytes.extend_from_slice(b"] ");
            bytes.extend_from_slice(line);
            count += 1;
        }
        log.push(self.stream, &self.label, bytes, count);
    }

    /// The last lines, for people.
    pub(super) fn tail(&self) -> String {
        let from = self.tail.len().saturating_sub(TAIL_BYTES_MAX);
        let text = String::from_utf8_lossy(&self.tail[from..]);
        let text = text.trim_end();
        let skipped = text.lines().count().saturating_sub(TAIL_LINES_MAX);
        text.lines().skip(skipped).collect::<Vec<_>>().join("\n")
    }
}

impl Host {
    pub(super) fn pump(&mut self, id: ProcId, stream: Stream) {
        let Some(running) = self.running.get_mut(&id) else {
            return;
        };
        for pump in running.pumps.iter_mut().filter(|pump| pump.stream == stream) {
            turn(&self.epoll, pump);
        }
    }

    pub(super) fn pump_template(&mut self, id: TemplateId, stream: Stream) {
        let Some(template) = self.templates.get_mut(&id) else {
            return;
        };
        for pump in template.pumps.iter_mut().filter(|pump| pump.stream == stream) {
            turn(&self.epoll, pump);
        }
    }
}

fn turn(epoll: &OwnedFd, pump: &mut Pump) {
    if !pump.turn(TURN_BYTES_MAX)
        && let Some(pipe) = pump.pipe.take()
    {
        // An ended pipe is always readable.
        let _ = epoll::delete(epoll, &pipe);
    }
}
