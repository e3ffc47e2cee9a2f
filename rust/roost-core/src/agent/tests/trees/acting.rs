//! What happens in a run: one thing at a step.

use super::*;

impl World {
    pub(super) fn step(&mut self) {
        match self.below(22) {
            0 | 1 => self.spawn(),
            2..=5 => {
                let ordered = self.those(|process| matches!(process, Process::Ordered { .. }));
                if let Some(key) = self.one_of(&ordered) {
                    self.answer(key);
                }
            }
            6..=8 => {
                let started = self.those(|process| *process == Process::Running { is_up: false });
                if let Some(key) = self.one_of(&started) {
                    self.come_up(key);
                }
            }
            9..=11 => {
                let running = self.those(|process| matches!(process, Process::Running { .. }));
                if let Some(key) = self.one_of(&running) {
                    let (code, known) = (self.below(3), self.below(2) == 0);
                    self.die(key, code, known);
                }
            }
            12 => {
                let untold =
                    self.those(|process| matches!(process, Process::Ending { tell_ns: Some(_), .. }));
                if let Some(key) = self.one_of(&untold) {
                    let code = self.below(3);
                    self.exit(key, code);
                }
            }
            13 | 14 => {
                let ending = self.those(|process| matches!(process, Process::Ending { .. }));
                if let Some(key) = self.one_of(&ending) {
                    self.go(key);
                }
            }
            15 => self.ask(0),
            16 => self.ask(1),
            17 => self.ask(2),
            18 => self.join(),
            19 => self.part(),
            _ => {
                let ms = [1, 60, 500, 5_000, 30_000][usize::try_from(self.below(5)).expect("an index")];
                self.pass(ms * MS);
            }
        }
        self.settle();
    }

    pub(super) fn policy(&mut self) -> Option<Policy> {
        let pause_ns = self.below(3) * 100 * MS;
        (self.below(5) > 0).then(|| Policy {
            limit: u32::try_from(self.below(4)).expect("small"),
            within_ns: [5, 60][usize::try_from(self.below(2)).expect("an index")] * SECOND,
            backoff_min_ns: pause_ns,
            backoff_max_ns: pause_ns * 8,
            scope: [Scope::One, Scope::All, Scope::Rest][usize::try_from(self.below(3)).expect("an index")],
            when: [When::Failed, When::Always][usize::try_from(self.below(2)).expect("an index")],
            while_down: WhileDown::Fail,
            on: [On::SameHost, On::AnyHost][usize::try_from(self.below(2)).expect("an index")],
        })
    }

    pub(super) fn spawn(&mut self) {
        let first = self.model.0.len() as u64 + 1;
        let ranks: Vec<u64> = (first..first + 1 + self.below(3)).collect();
        if self.model.0.len() + self.spares.len() + ranks.len() + 2 > PROCS_MAX {
            return;
        }
        let mut owners = self.those(|process| *process == Process::Running { is_up: true });
        owners.retain(|&(number, _)| self.model.runs(number));
        owners.push((DRIVER, 0));
        let owner = self.one_of(&owners).map_or(DRIVER, |(number, _)| number);
        let policy = self.policy();
        let count = if policy.is_some() { self.below(3) } else { 0 };
        let base = if self.below(2) == 0 {
            warm(&ranks)
        } else {
            spawn(&ranks)
        };
        let spawned = Spawn {
            mesh: mesh(first),
            owner: proc(owner),
            policy,
            ..base
        };
        let spawned = match policy {
            Some(policy) => spares::with_spares(spawned, count, policy),
            None => spawned,
        };
        let mut spawned = spawned;
        for rank in spawned.ranks.iter_mut().chain(&mut spawned.spares) {
            rank.host = host(self.one_of(&self.hosts.clone()).expect("the driver's"));
        }
        for rank in &spawned.ranks {
            let of = (owner, rank.host.get());
            self.model.spawn(rank.proc.get(), first, of, policy);
        }
        let spares = spawned.spares.iter();
        self.spares
            .extend(spares.map(|spare| (spare.proc.get(), (first, spare.host.get()))));
        self.rig.say(owner, ToAgent::Spawn(Box::new(spawned)));
    }

    /// The template's answer to an order.
    pub(super) fn answer(&mut self, key: (u64, u32)) {
        let (proc, incarnation) = (proc(key.0), Incarnation(key.1));
        match self.below(8) {
            0 => {
                self.processes.remove(&key);
                self.fault(key, false);
                let reason = "no memory".to_owned();
                let failed = Input::LaunchFailed {
                    proc,
                    incarnation,
                    reason,
                };
                self.happen(key, failed);
            }
            1 => self.lose(key),
            _ => self.launch(key),
        }
    }

    pub(super) fn launch(&mut self, key: (u64, u32)) {
        self.processes.insert(key, Process::Running { is_up: false });
        let (proc, incarnation) = (proc(key.0), Incarnation(key.1));
        let launched = Input::Launched {
            proc,
            incarnation,
            pid: 7,
        };
        self.happen(key, launched);
    }

    pub(super) fn lose(&mut self, key: (u64, u32)) {
        let Some(Process::Ordered { lost }) = self.processes.remove(&key) else {
            return;
        };
        let is_asked = self
            .model
            .0
            .get(&key.0)
            .is_some_and(|child| child.asked.is_some());
        if lost == LAUNCHES_LOST_MAX || is_asked || self.killed.contains(&key) {
            self.fault(key, false);
        }
        let (proc, incarnation) = (proc(key.0), Incarnation(key.1));
        self.happen(key, Input::LaunchLost { proc, incarnation });
        self.take();
        if let Some(Process::Ordered { lost: again }) = self.processes.get_mut(&key) {
            *again = lost + 1;
        }
    }

    pub(super) fn come_up(&mut self, key: (u64, u32)) {
        self.processes.insert(key, Process::Running { is_up: true });
        let up = Input::Message {
            from: proc(key.0),
            message: ToAgent::Up,
            descriptor: None,
        };
        self.happen(key, up);
    }

    pub(super) fn die(&mut self, key: (u64, u32), code: u64, known: bool) {
        let was_up = self.processes[&key] == Process::Running { is_up: true };
        let tell_ns = (!known).then(|| self.rig.now_ns + crate::limits::EXIT_STATUS_WAIT_NS);
        self.processes.insert(key, Process::Ending { tell_ns, was_up });
        if known {
            self.fault(key, was_up && code == 0);
        } else if let Some(child) = self.model.0.get_mut(&key.0) {
            child.stage = Stage::Ending;
        }
        let exit = known.then(|| status(code));
        let (proc, incarnation) = (proc(key.0), Incarnation(key.1));
        let seen = Seen {
            exit,
            ..Seen::default()
        };
        let died = Input::Died {
            proc,
            incarnation,
            seen,
        };
        self.happen(key, died);
    }

    pub(super) fn exit(&mut self, key: (u64, u32), code: u64) {
        let Some(Process::Ending { tell_ns, was_up }) = self.processes.get_mut(&key) else {
            return;
        };
        *tell_ns = None;
        let clean = *was_up && code == 0;
        self.fault(key, clean);
        let (proc, incarnation) = (proc(key.0), Incarnation(key.1));
        let exited = Input::Exited {
            proc,
            incarnation,
            exit: status(code),
        };
        self.happen(key, exited);
    }

    pub(super) fn go(&mut self, key: (u64, u32)) {
        if let Some(Process::Ending { tell_ns: Some(_), .. }) = self.processes.get(&key) {
            // Nobody will say how it ended: its memory is free, its end is told in its time.
            self.pass(crate::limits::EXIT_STATUS_WAIT_NS);
        }
        self.processes.remove(&key);
        let (proc, incarnation) = (proc(key.0), Incarnation(key.1));
        self.happen(key, Input::Gone { proc, incarnation });
    }

    /// A host tells what has happened there.
    fn happen(&mut self, key: (u64, u32), input: Input) {
        self.rig.input_from(self.on[&key], input);
    }

    pub(super) fn join(&mut self) {
        self.joined += 1;
        self.hosts.push(self.joined);
        self.rig.join(self.joined);
    }

    /// A host is lost, or leaves. There is always another than the driver's.
    pub(super) fn part(&mut self) {
        let others: Vec<u64> = self.hosts.iter().copied().filter(|&of| of != OWN).collect();
        let Some(of) = self.one_of(&others).filter(|_| others.len() > 1) else {
            return;
        };
        let lost = self.below(3) > 0;
        self.hosts.retain(|&one| one != of);
        let on = &self.on;
        self.processes.retain(|key, _| on[key] != of);
        self.spares.retain(|_, (_, host)| *host != of);
        let told = self.model.gone(self.rig.now_ns, of, lost);
        self.losses += told.len() as u64;
        self.due.extend(told);
        if lost {
            self.rig.lose(of);
        } else {
            self.rig.leave(of);
        }
    }

    /// Somebody stops, restarts or kills a few procs.
    pub(super) fn ask(&mut self, what: u64) {
        let all: Vec<u64> = self.model.0.keys().copied().collect();
        let Some(first) = self.one_of(&all) else { return };
        let mesh = self.model.0[&first].mesh;
        let whole = self.below(2) == 0;
        let numbers: Vec<u64> = all
            .into_iter()
            .filter(|number| *number == first || (whole && self.model.0[number].mesh == mesh))
            .collect();
        let procs: Vec<ProcId> = numbers.iter().map(|&number| proc(number)).collect();
        let (reason, patience) = ("asked".to_owned(), PATIENCE);
        let message = match what {
            0 => {
                for number in numbers {
                    let told = self.model.stop(number);
                    self.due.extend(told);
                }
                ToAgent::Stop {
                    procs,
                    reason,
                    patience,
                }
            }
            1 => {
                for number in numbers {
                    let told = self.model.restart(number);
                    self.due.extend(told);
                }
                ToAgent::Restart {
                    procs,
                    reason,
                    patience,
                }
            }
            _ => {
                let running = numbers.iter().map(|number| (*number, self.model.0[number].life));
                self.killed
                    .extend(running.filter(|key| self.model.runs(key.0) && self.processes.contains_key(key)));
                ToAgent::Kill { procs, reason: None }
            }
        };
        self.rig.say(DRIVER, message);
    }

    /// Time passes, with all that comes due.
    pub(super) fn pass(&mut self, by_ns: u64) {
        let until_ns = self.rig.now_ns + by_ns;
        loop {
            self.settle();
            let next_ns = self.rig.agent.next_wakeup_ns().filter(|&at_ns| at_ns <= until_ns);
            self.rig.now_ns = next_ns.unwrap_or(until_ns).max(self.rig.now_ns);
            for key in self.those(|process| matches!(process, Process::Ending { tell_ns: Some(_), .. })) {
                if let Some(Process::Ending { tell_ns, .. }) = self.processes.get_mut(&key)
                    && tell_ns.is_some_and(|at_ns| at_ns <= self.rig.now_ns)
                {
                    *tell_ns = None;
                    self.fault(key, false);
                }
            }
            self.rig.input(Input::Tick);
            if next_ns.is_none() {
                break;
            }
        }
        self.settle();
    }
}
