//! What happens in a schedule.

use super::*;

impl World {
    fn nth(&self, which: usize, process: Process) -> Option<(u64, u32)> {
        let those: Vec<_> = self
            .processes
            .iter()
            .filter(|(_, one)| **one == process)
            .map(|(key, _)| *key)
            .collect();
        (!those.is_empty()).then(|| those[which % those.len()])
    }

    pub(super) fn run(&mut self, rig: &mut Rig, step: Step, spawned: &mut u64) {
        match step {
            Step::Spawn {
                owner,
                limit,
                warm,
                ask,
                spares,
                hosts,
                moves,
            } => {
                *spawned += 1;
                let owner = if owner == 0 {
                    DRIVER
                } else {
                    (owner as u64).min(*spawned)
                };
                let base = if warm {
                    super::warm(&[*spawned])
                } else {
                    spawn(&[*spawned])
                };
                let on = [On::SameHost, On::AnyHost][usize::from(moves)];
                let policy = Policy { on, ..policy(limit) };
                let mut base = spares::with_spares(base, spares, policy);
                self.place(&mut base, hosts, moves);
                self.limits.insert(*spawned, limit);
                rig.say(
                    DRIVER,
                    ToAgent::Spawn(Box::new(Spawn {
                        owner: proc(owner),
                        ask,
                        ..base
                    })),
                );
            }
            Step::Wait { ms } => rig.wait(ms * MS),
            Step::Join => self.join(rig),
            Step::Part { which, lost } => self.part(rig, which, lost),
            Step::Late(which) => self.late(rig, which),
            Step::Launch(_) | Step::Up(_) | Step::Die { .. } | Step::Exit(_) | Step::Go(_) => {
                self.happen(rig, step);
            }
            step => self.request(rig, step, *spawned),
        }
    }

    /// Spread the ranks and spares of a mesh over two hosts, which may have gone meanwhile.
    fn place(&mut self, spawn: &mut Spawn, hosts: (usize, usize), moves: bool) {
        let known = (OWN..=self.joined.max(OWN)).collect::<Vec<_>>();
        let of = [hosts.0, hosts.1].map(|which| known[which % known.len()]);
        for (rank, of) in spawn
            .ranks
            .iter_mut()
            .chain(&mut spawn.spares)
            .zip(of.iter().cycle())
        {
            rank.host = host(*of);
            self.home.insert(rank.proc.get(), *of);
        }
        if moves {
            self.moving.extend(spawn.ranks.iter().map(|rank| rank.proc.get()));
        }
    }

    fn join(&mut self, rig: &mut Rig) {
        self.joined = self.joined.max(OWN) + 1;
        self.hosts.push(self.joined);
        rig.join(self.joined);
    }

    fn part(&mut self, rig: &mut Rig, which: usize, lost: bool) {
        if self.hosts.is_empty() {
            return;
        }
        let of = self.hosts.remove(which % self.hosts.len());
        let on = &self.on;
        self.processes.retain(|key, _| on[key] != of);
        if lost {
            rig.lose(of);
        } else {
            rig.leave(of);
        }
    }

    fn late(&mut self, rig: &mut Rig, which: usize) {
        let Some(&of) = rig.gone.iter().nth(which % rig.gone.len().max(1)) else {
            return;
        };
        let all: Vec<(u64, u32)> = self.on.keys().copied().collect();
        let Some(&(number, life)) = all.get(which) else {
            return;
        };
        let before = rig.agent.epoch();
        let (proc, incarnation) = (proc(number), Incarnation(life));
        rig.input_from(of, Input::Gone { proc, incarnation });
        let seen = Seen::default();
        rig.input_from(
            of,
            Input::Died {
                proc,
                incarnation,
                seen,
            },
        );
        assert_eq!(rig.agent.epoch(), before);
    }

    /// A process's host tells what has happened to it.
    fn tell(&self, rig: &mut Rig, key: (u64, u32), input: Input) {
        rig.input_from(self.on[&key], input);
    }

    /// Something happens to a process.
    fn happen(&mut self, rig: &mut Rig, step: Step) {
        match step {
            Step::Launch(which) => {
                if let Some((number, incarnation)) = self.nth(which, Process::Ordered) {
                    self.processes.insert((number, incarnation), Process::Running);
                    let launched = Input::Launched {
                        proc: proc(number),
                        incarnation: Incarnation(incarnation),
                        pid: 7,
                    };
                    self.tell(rig, (number, incarnation), launched);
                }
            }
            Step::Up(which) => {
                if let Some((number, _)) = self.nth(which, Process::Running) {
                    rig.say(number, ToAgent::Up);
                }
            }
            Step::Die {
                which,
                code,
                status_known,
            } => {
                if let Some((number, incarnation)) = self.nth(which, Process::Running) {
                    self.processes.insert((number, incarnation), Process::Ending);
                    let exit = status_known.then_some(Exit::Code(code));
                    let seen = Seen {
                        exit,
                        ..Seen::default()
                    };
                    let died = Input::Died {
                        proc: proc(number),
                        incarnation: Incarnation(incarnation),
                        seen,
                    };
                    self.tell(rig, (number, incarnation), died);
                }
            }
            Step::Exit(which) => {
                if let Some((number, incarnation)) = self.nth(which, Process::Ending) {
                    let exited = Input::Exited {
                        proc: proc(number),
                        incarnation: Incarnation(incarnation),
                        exit: Exit::Code(1),
                    };
                    self.tell(rig, (number, incarnation), exited);
                }
            }
            Step::Go(which) => {
                if let Some((number, incarnation)) = self.nth(which, Process::Ending) {
                    self.processes.remove(&(number, incarnation));
                    let (proc, life) = (proc(number), Incarnation(incarnation));
                    let gone = Input::Gone {
                        proc,
                        incarnation: life,
                    };
                    self.tell(rig, (number, incarnation), gone);
                }
            }
            _ => {}
        }
    }

    fn request(&mut self, rig: &mut Rig, step: Step, spawned: u64) {
        let patience = Patience {
            grace_ns: SECOND,
            sigterm_ns: SECOND,
        };
        let one = |which: usize| vec![proc(which as u64 % spawned.max(1) + 1)];
        match step {
            Step::Stop(which) => {
                rig.say(
                    DRIVER,
                    ToAgent::Stop {
                        procs: one(which),
                        reason: "stop".to_owned(),
                        patience,
                    },
                );
            }
            Step::Restart(which) => {
                rig.say(
                    DRIVER,
                    ToAgent::Restart {
                        procs: one(which),
                        reason: "again".to_owned(),
                        patience,
                    },
                );
            }
            Step::Kill(which) => rig.say(
                DRIVER,
                ToAgent::Kill {
                    procs: one(which),
                    reason: None,
                },
            ),
            Step::Connect(from, to) => connect(rig, one(from)[0].get(), one(to)[0]),
            Step::Answer(good) => {
                if let Some((number, incarnation)) = self.asked.pop() {
                    let launch = Launch {
                        spec: b"".as_slice().into(),
                        environ: Some(Vec::new()),
                        command: None,
                    };
                    let launch = if good {
                        Ok(launch)
                    } else {
                        Err("raised".to_owned())
                    };
                    let incarnation = Incarnation(incarnation);
                    rig.say(
                        DRIVER,
                        ToAgent::Respawn {
                            proc: proc(number),
                            incarnation,
                            launch,
                        },
                    );
                }
            }
            Step::Template(what) => self.template(rig, what),
            _ => {}
        }
    }

    fn template(&mut self, rig: &mut Rig, what: u8) {
        let Some(template) = self.loading.pop() else {
            return;
        };
        let (reason, stderr) = ("template".to_owned(), String::new());
        rig.input(match what {
            0 => Input::TemplateFailed {
                template,
                reason,
                stderr,
            },
            1 => Input::TemplateEnded {
                template,
                killed: true,
                reason,
                stderr,
            },
            _ => Input::TemplateReady(template),
        });
    }
}

/// Ask for a lane to a proc, and for the memory of its first lives.
fn connect(rig: &mut Rig, from: u64, proc: ProcId) {
    rig.say(from, ToAgent::Connect { proc });
    for incarnation in (0..3).map(Incarnation) {
        rig.say(from, ToAgent::Link { proc, incarnation });
    }
}
