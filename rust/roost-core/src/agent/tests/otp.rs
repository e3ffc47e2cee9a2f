//! Erlang's rules of supervision once more, as short as they can be said: what the agent is compared with.
//!
//! A child is permanent (`When::Always`), transient (`When::Failed`) or temporary (no policy); intensity and period are
//! counted for each child; the strategy is the scope. What is not Erlang's: a failure is not the end of the siblings.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// Its policy starts it again.
    Mended,
    /// It was asked to start again.
    Again,
    /// It climbs, with so many deaths that were mended before.
    Failed(usize),
    /// It is over, in order or on request.
    Stopped,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Runs,
    /// Its process has ended, and nobody was told yet.
    Ending,
    Down,
    Over,
}

#[derive(Debug)]
pub(super) struct Child {
    pub(super) mesh: u64,
    pub(super) owner: u64,
    /// Where it was started last.
    pub(super) host: u64,
    pub(super) policy: Option<Policy>,
    pub(super) life: u32,
    pub(super) stage: Stage,
    /// Whether it was asked to end; with it, whether to start again.
    pub(super) asked: Option<bool>,
    mended_ns: Vec<u64>,
    reasons: usize,
}

/// Children by number, which is also the order in which they were started; and hosts that are gone.
#[derive(Debug, Default)]
pub(super) struct Model(pub(super) BTreeMap<u64, Child>, BTreeSet<u64>);

impl Model {
    pub(super) fn spawn(
        &mut self,
        number: u64,
        mesh: u64,
        (owner, host): (u64, u64),
        policy: Option<Policy>,
    ) {
        let (life, stage, asked, mended_ns, reasons) = (0, Stage::Runs, None, Vec::new(), 0);
        self.0.insert(
            number,
            Child {
                mesh,
                owner,
                host,
                policy,
                life,
                stage,
                asked,
                mended_ns,
                reasons,
            },
        );
    }

    pub(super) fn runs(&self, number: u64) -> bool {
        number == DRIVER
            || self
                .0
                .get(&number)
                .is_some_and(|child| child.stage == Stage::Runs)
    }

    pub(super) fn started(&mut self, number: u64, life: u32) {
        let child = self.0.get_mut(&number).expect("only children start");
        (child.life, child.stage, child.asked) = (life, Stage::Runs, None);
    }

    /// What everybody is told of a process that has ended, and of what that ends besides.
    pub(super) fn ended(&mut self, now_ns: u64, number: u64, clean: bool) -> Vec<(u64, u32, Verdict)> {
        let has_place = self.has_place(number);
        let child = self.0.get_mut(&number).expect("only children end");
        let verdict = match (child.asked.take(), child.policy) {
            (Some(true), _) if has_place => Verdict::Again,
            (Some(true), _) => Verdict::Failed(child.reasons),
            (None, Some(policy)) if !clean || policy.when == When::Always => {
                child.mended_ns.retain(|at_ns| at_ns + policy.within_ns > now_ns);
                if child.mended_ns.len() < policy.limit as usize && has_place {
                    child.mended_ns.push(now_ns);
                    child.reasons = (child.reasons + 1).min(crate::limits::DEATHS_KEPT_MAX);
                    Verdict::Mended
                } else {
                    Verdict::Failed(child.reasons)
                }
            }
            (None, None) if !clean => Verdict::Failed(0),
            (Some(false) | None, _) => Verdict::Stopped,
        };
        let is_over = matches!(verdict, Verdict::Failed(_) | Verdict::Stopped);
        child.stage = if is_over { Stage::Over } else { Stage::Down };
        child.reasons = if is_over { 0 } else { child.reasons };
        let mut told = vec![(number, child.life, verdict)];
        let (mesh, scope) = (child.mesh, child.policy.map(|policy| policy.scope));
        for (&other, sibling) in self.0.iter_mut().filter(|(_, sibling)| sibling.mesh == mesh) {
            let is_meant = match scope {
                Some(Scope::All) => other != number,
                Some(Scope::Rest) => other > number,
                _ => false,
            };
            if verdict == Verdict::Mended && is_meant && sibling.stage == Stage::Runs {
                sibling.asked = sibling.asked.or(Some(true));
            }
        }
        let owned: Vec<u64> = self
            .0
            .iter()
            .filter(|(_, one)| one.owner == number)
            .map(|(&one, _)| one)
            .collect();
        told.extend(owned.into_iter().filter_map(|one| self.stop(one)));
        told
    }

    /// Whether there is a host to start it on. There always is one that others may move to.
    fn has_place(&self, number: u64) -> bool {
        let child = &self.0[&number];
        let moves = child.policy.is_some_and(|policy| policy.on == On::AnyHost);
        moves || !self.1.contains(&child.host)
    }

    /// A host is gone: `lost`, or let go in order.
    pub(super) fn gone(&mut self, now_ns: u64, host: u64, lost: bool) -> Vec<(u64, u32, Verdict)> {
        self.1.insert(host);
        let there = self.0.iter().filter(|(_, child)| child.host == host);
        let there: Vec<u64> = there.map(|(&number, _)| number).collect();
        for number in &there {
            let child = self.0.get_mut(number).expect("it is there");
            if child.stage == Stage::Runs {
                child.stage = Stage::Ending;
            }
            if child.stage == Stage::Ending && !lost {
                child.asked = Some(false);
            }
        }
        let mut told = Vec::new();
        for number in there {
            match self.0[&number].stage {
                Stage::Ending => told.extend(self.ended(now_ns, number, false)),
                Stage::Down if !lost => told.extend(self.stop(number)),
                Stage::Down if !self.has_place(number) => told.push(self.fail(number)),
                _ => {}
            }
        }
        told
    }

    fn fail(&mut self, number: u64) -> (u64, u32, Verdict) {
        let child = self.0.get_mut(&number).expect("only children fail");
        let verdict = Verdict::Failed(child.reasons);
        (child.stage, child.reasons) = (Stage::Over, 0);
        (number, child.life, verdict)
    }

    /// What everybody is told at once when this child is stopped.
    pub(super) fn stop(&mut self, number: u64) -> Option<(u64, u32, Verdict)> {
        let child = self.0.get_mut(&number)?;
        match child.stage {
            Stage::Runs | Stage::Ending => child.asked = Some(false),
            Stage::Down => {
                (child.stage, child.reasons) = (Stage::Over, 0);
                return Some((number, child.life, Verdict::Stopped));
            }
            Stage::Over => {}
        }
        None
    }

    /// What everybody is told at once when this child is asked to start again.
    pub(super) fn restart(&mut self, number: u64) -> Option<(u64, u32, Verdict)> {
        let has_place = self.has_place(number);
        let owner_runs = self.0.get(&number).is_some_and(|child| self.runs(child.owner));
        let child = self.0.get_mut(&number).expect("only children restart");
        match child.stage {
            Stage::Runs => child.asked = child.asked.or(Some(true)),
            Stage::Over if owner_runs => {
                child.stage = Stage::Down;
                child.mended_ns.clear();
                return (!has_place).then(|| self.fail(number));
            }
            _ => {}
        }
        None
    }
}
