//! What the agent says, and what the rules say it should.

use super::*;

impl World {
    /// The end of a process is told now: what do the rules say?
    pub(super) fn fault(&mut self, key: (u64, u32), clean: bool) {
        if self.is_spare(key.0) {
            return;
        }
        self.faults += 1;
        let told = self.model.ended(self.rig.now_ns, key.0, clean);
        self.due.extend(told);
    }

    /// Take in what it has said, and compare.
    pub(super) fn settle(&mut self) {
        self.take();
        self.due.sort_unstable();
        self.told.sort_unstable();
        assert_eq!(self.told, self.due, "what was told, and what the rules say");
        self.due.clear();
        self.told.clear();
    }

    pub(super) fn take(&mut self) {
        for output in self.rig.take() {
            match output {
                Output::Launch(order) => self.ordered(order.proc.get(), order.incarnation.0),
                Output::TakePlace(place) => self.placed(&place),
                Output::Send {
                    to,
                    message: ToClient::Member(member),
                    ..
                } => self.heard(to[0].get(), &member),
                Output::Send {
                    to,
                    message: ToClient::Warning { text },
                    ..
                } => {
                    assert!(text.contains("is not replaced"), "{to:?}: {text}");
                    self.given_up += 1;
                }
                Output::Signal {
                    proc,
                    incarnation,
                    signal: Signal::Kill,
                } => {
                    let key = (proc.get(), incarnation.0);
                    if !self.killed.contains(&key) {
                        self.killed.push(key);
                    }
                }
                _ => {}
            }
        }
    }

    pub(super) fn ordered(&mut self, number: u64, life: u32) {
        let left: Vec<_> = self.processes.keys().filter(|(one, _)| *one == number).collect();
        assert!(
            left.is_empty() || left == [&(number, life)],
            "proc {number} starts while {left:?} has its memory"
        );
        let of = self.rig.launched_on[&(number, life)];
        self.processes
            .insert((number, life), Process::Ordered { lost: 0 });
        self.on.insert((number, life), of);
        if !self.is_spare(number) {
            self.begun(number, life, of);
        }
    }

    pub(super) fn placed(&mut self, place: &Place) {
        self.places += 1;
        let ((spare, spare_life), (number, life)) = (place.spare, place.proc);
        let process = self.processes.remove(&(spare.get(), spare_life.0));
        assert_eq!(
            process,
            Some(Process::Running { is_up: true }),
            "a spare that is ready"
        );
        let (mesh, of) = self.spares[&spare.get()];
        assert_eq!(mesh, self.model.0[&number.get()].mesh, "of the same mesh");
        assert!(
            !self.processes.keys().any(|(one, _)| *one == number.get()),
            "the memory of the dead is free"
        );
        self.processes
            .insert((number.get(), life.0), Process::Running { is_up: false });
        self.on.insert((number.get(), life.0), of);
        self.begun(number.get(), life.0, of);
    }

    pub(super) fn begun(&mut self, number: u64, life: u32, of: u64) {
        self.check_host(number, of);
        self.model.0.get_mut(&number).expect("a child").host = of;
        let stage = self.model.0[&number].stage;
        assert!(
            matches!(stage, Stage::Runs | Stage::Down),
            "proc {number} starts, and should not: {stage:?}"
        );
        if life > 0 && stage == Stage::Down {
            self.model.started(number, life);
        }
    }

    /// It may start on this host.
    fn check_host(&self, number: u64, of: u64) {
        let child = &self.model.0[&number];
        if child.host == of {
            return;
        }
        assert!(
            !self.hosts.contains(&child.host),
            "proc {number} moves, and its host is there"
        );
        let moves = child.policy.is_some_and(|policy| policy.on == On::AnyHost);
        assert!(moves, "proc {number} moves, and should not");
        let mut siblings = self.model.0.values().filter(|one| one.mesh == child.mesh);
        assert!(
            of != OWN || siblings.any(|one| one.host == OWN),
            "proc {number} comes to the driver's host"
        );
    }

    /// Their numbers are far from those of ranks.
    fn is_spare(&self, number: u64) -> bool {
        !self.model.0.contains_key(&number)
    }

    pub(super) fn heard(&mut self, to: u64, member: &Member) {
        let (number, life) = (member.proc.get(), member.incarnation.0);
        assert!(
            !self.is_spare(number) && (to == DRIVER || !self.is_spare(to)),
            "spares are nobody's business"
        );
        let verdict = match &member.status {
            Status::Dead { death } if death.kind == DeathKind::Stopped => Verdict::Again,
            Status::Dead { .. } => Verdict::Mended,
            Status::Failed { earlier, .. } => Verdict::Failed(earlier.len()),
            Status::Stopped { .. } => Verdict::Stopped,
            _ => return,
        };
        let owner = self.model.0[&number].owner;
        if to == DRIVER {
            self.told.push((number, life, verdict));
            if self.model.runs(owner) {
                *self.heard.entry((owner, number, life)).or_default() += 1;
            }
        }
        if to == owner {
            *self.heard.entry((owner, number, life)).or_default() -= 1;
        }
    }

    // The end ---------------------------------------------------------------------------------------------------------------
    /// Let everything that is under way come to its end, and see who is there.
    pub(super) fn rest(&mut self) {
        for _ in 0..10_000 {
            let before = self.processes.clone();
            for (key, process) in before {
                match process {
                    Process::Ordered { .. } => self.launch(key),
                    Process::Running { .. } if self.has_to_end(key) => self.die(key, 1, true),
                    Process::Running { is_up: false } => self.come_up(key),
                    Process::Running { .. } => {}
                    Process::Ending { .. } => self.go(key),
                }
                self.settle();
            }
            self.pass(SECOND);
            let is_quiet = self
                .processes
                .iter()
                .all(|(&key, &process)| process == Process::Running { is_up: true } && !self.has_to_end(key));
            if is_quiet && self.model.0.values().all(|child| child.stage != Stage::Down) && self.spares_rest()
            {
                return;
            }
        }
        panic!("it does not come to rest: {:?}\n{:?}", self.processes, self.model);
    }

    pub(super) fn has_to_end(&self, key: (u64, u32)) -> bool {
        let is_asked = self
            .model
            .0
            .get(&key.0)
            .is_some_and(|child| child.asked.is_some());
        let is_useless = self
            .spares
            .get(&key.0)
            .is_some_and(|&(mesh, of)| !self.needs_spares(mesh, of));
        is_asked || is_useless || self.killed.contains(&key)
    }

    pub(super) fn needs_spares(&self, mesh: u64, of: u64) -> bool {
        self.model.0.values().any(|child| {
            let comes = child.host == of || child.policy.is_some_and(|policy| policy.on == On::AnyHost);
            comes && child.mesh == mesh && child.stage != Stage::Over
        })
    }

    /// Whether all spares that should be there are.
    pub(super) fn spares_rest(&self) -> bool {
        let is_there = |spare: u64| self.processes.keys().any(|&(number, _)| number == spare);
        let missing = self
            .spares
            .iter()
            .filter(|&(&spare, &(mesh, of))| self.needs_spares(mesh, of) && !is_there(spare))
            .count();
        missing <= self.given_up
    }

    pub(super) fn check_end(&mut self) {
        for (&number, child) in &self.model.0 {
            let has_process = self.processes.keys().any(|&(one, _)| one == number);
            assert_eq!(
                has_process,
                child.stage == Stage::Runs,
                "proc {number}: {child:?}"
            );
        }
        for (key, unequal) in &self.heard {
            assert_eq!(
                *unequal, 0,
                "the owner heard {key:?} as often as it was told, and not one time more"
            );
        }
        self.rig.input(Input::Close);
        assert_eq!(self.rig.launches(), []);
        for (number, life) in std::mem::take(&mut self.processes).into_keys() {
            self.rig.crash(number, life);
        }
        assert!(self.rig.agent.is_empty(), "nothing outlives the job");
    }
}
