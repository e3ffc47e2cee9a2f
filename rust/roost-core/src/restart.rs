//! When a proc that died is started again: a policy of plain data, and what it has seen so far.
//!
//! A death is mended when fewer than `limit` deaths were mended in the window of `within_ns` before it; the pause
//! before the start grows with each of those. Erlang calls it intensity and period; the difference is the pause.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Which ranks of the mesh start again when one died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// That one.
    One,
    /// All of them.
    All,
    /// That one and those that come after it.
    Rest,
}

/// Which ends are mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum When {
    /// All but an end in order.
    Failed,
    /// An end in order too.
    Always,
}

/// What callers get while it is down. The agent only carries it: senders act on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WhileDown {
    /// Their calls fail at once.
    Fail,
    /// What was not delivered waits for the next incarnation.
    Wait,
}

/// Where it starts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum On {
    /// On its host; when that is lost, nowhere.
    SameHost,
    /// On another when its host is lost.
    AnyHost,
}

/// A restart policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// How many deaths are mended in the window.
    pub limit: u32,
    /// The sliding window.
    pub within_ns: u64,
    /// The first pause.
    pub backoff_min_ns: u64,
    /// The longest pause.
    pub backoff_max_ns: u64,
    /// Which ranks start again.
    pub scope: Scope,
    /// Which ends are mended.
    pub when: When,
    /// What callers get meanwhile.
    pub while_down: WhileDown,
    /// Where they start again.
    pub on: On,
}

/// What the policy says to one death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Start the next incarnation after this pause.
    Restart {
        /// The pause.
        delay_ns: u64,
    },
    /// It ended in order and the policy does not mend that.
    Ended,
    /// No more: the failure climbs.
    GiveUp,
}

/// The deaths that were mended inside the window, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct History {
    mended_ns: VecDeque<u64>,
}

impl History {
    /// Decide about a death at `now_ns`. `random` is uniform in [0, 1) and drawn outside; it spreads the pause by
    /// ±20 %, so that ranks that died together do not start together, and pauses still grow.
    pub fn decide(&mut self, policy: &Policy, now_ns: u64, clean: bool, random: f64) -> Decision {
        if clean && policy.when == When::Failed {
            return Decision::Ended;
        }
        while self
            .mended_ns
            .front()
            .is_some_and(|at| at.saturating_add(policy.within_ns) <= now_ns)
        {
            self.mended_ns.pop_front();
        }
        let mended = self.mended_ns.len();
        if mended >= policy.limit as usize {
            return Decision::GiveUp;
        }
        self.mended_ns.push_back(now_ns);
        Decision::Restart {
            delay_ns: jittered(pause_ns(policy, mended), random),
        }
    }

    /// How many deaths the window holds.
    pub fn mended(&self) -> usize {
        self.mended_ns.len()
    }
}

/// The pause after this many mended deaths: doubled for each, up to the longest.
fn pause_ns(policy: &Policy, mended: usize) -> u64 {
    let doubled = u32::try_from(mended)
        .ok()
        .and_then(|by| 1_u64.checked_shl(by))
        .unwrap_or(u64::MAX);
    policy
        .backoff_min_ns
        .saturating_mul(doubled)
        .min(policy.backoff_max_ns)
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a pause is far below 2^53 ns, and a random pause needs no more digits"
)]
fn jittered(pause_ns: u64, random: f64) -> u64 {
    (pause_ns as f64 * (0.8 + 0.4 * random.clamp(0.0, 1.0))) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn policy(limit: u32, within_s: u64) -> Policy {
        Policy {
            limit,
            within_ns: within_s * SECOND_NS,
            backoff_min_ns: SECOND_NS / 10,
            backoff_max_ns: 5 * SECOND_NS,
            scope: Scope::One,
            when: When::Failed,
            while_down: WhileDown::Fail,
            on: On::SameHost,
        }
    }

    #[test]
    fn exactly_limit_deaths_are_mended_in_the_window() {
        let mut history = History::default();
        for number in 0..3 {
            let decision = history.decide(&policy(3, 60), number * SECOND_NS, false, 0.5);
            assert!(
                matches!(decision, Decision::Restart { .. }),
                "death {number} is mended"
            );
        }
        assert_eq!(
            history.decide(&policy(3, 60), 59 * SECOND_NS, false, 0.5),
            Decision::GiveUp
        );
        // The first has left the window: one more is allowed.
        assert!(matches!(
            history.decide(&policy(3, 60), 60 * SECOND_NS, false, 0.5),
            Decision::Restart { .. }
        ));
    }

    #[test]
    fn an_end_in_order_is_mended_only_when_asked_for() {
        let mut history = History::default();
        assert_eq!(history.decide(&policy(3, 60), 0, true, 0.5), Decision::Ended);
        let always = Policy {
            when: When::Always,
            ..policy(3, 60)
        };
        assert!(matches!(
            history.decide(&always, 0, true, 0.5),
            Decision::Restart { .. }
        ));
    }

    #[test]
    fn a_limit_of_zero_mends_nothing() {
        assert_eq!(
            History::default().decide(&policy(0, 60), 0, false, 0.5),
            Decision::GiveUp
        );
    }

    /// The whole rule again, over all deaths at once.
    fn model(policy: &Policy, deaths_ns: &[u64]) -> Vec<bool> {
        let mut mended: Vec<u64> = Vec::new();
        deaths_ns
            .iter()
            .map(|&now| {
                let recent = mended.iter().filter(|&&at| at + policy.within_ns > now).count();
                let mend = recent < policy.limit as usize;
                mended.extend(mend.then_some(now));
                mend
            })
            .collect()
    }

    proptest! {
        #[test]
        fn agrees_with_the_model(limit in 0_u32..6, within_s in 1_u64..30, gaps in prop::collection::vec(0_u64..10, 0..60)) {
            let policy = policy(limit, within_s);
            let mut now = 0;
            let deaths: Vec<u64> = gaps.iter().map(|gap| { now += gap * SECOND_NS; now }).collect();
            let mut history = History::default();
            let seen: Vec<bool> = deaths
                .iter()
                .map(|&at| matches!(history.decide(&policy, at, false, 0.5), Decision::Restart { .. }))
                .collect();
            prop_assert_eq!(seen, model(&policy, &deaths));
        }

        #[test]
        fn pauses_grow_whatever_is_drawn(draws in prop::collection::vec(0.0_f64..1.0, 2..12)) {
            let policy = Policy { backoff_max_ns: u64::MAX >> 12, ..policy(20, 60) };
            let mut history = History::default();
            let mut last = 0;
            for random in draws {
                let Decision::Restart { delay_ns } = history.decide(&policy, 0, false, random) else {
                    return Err(TestCaseError::fail("below the limit"));
                };
                prop_assert!(delay_ns > last);
                last = delay_ns;
            }
        }

        #[test]
        fn pauses_keep_to_their_bounds(mended in 0_usize..200, random in 0.0_f64..1.0) {
            let policy = policy(200, 60);
            let pause = jittered(pause_ns(&policy, mended), random);
            prop_assert!(pause >= policy.backoff_min_ns / 10 * 8 && pause <= policy.backoff_max_ns / 10 * 12);
        }
    }
}
