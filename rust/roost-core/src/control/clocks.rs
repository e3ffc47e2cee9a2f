//! Times in messages are of one clock: the monotonic clock of the host where they are read. What crosses to another host is
//! translated on its way.

use super::{Activity, Death, Status, Times, ToAgent, ToClient};

impl ToClient {
    /// Put each time in it into another clock.
    pub fn translate_times(&mut self, translate: impl Fn(u64) -> u64) {
        match self {
            Self::Stop { deadline_ns, .. } => *deadline_ns = translate(*deadline_ns),
            Self::Member(member) => translate_status(&mut member.status, &translate),
            Self::Seen { activities, .. } => translate_activities(activities, &translate),
            _ => {}
        }
    }
}

impl ToAgent {
    /// Put each time in it into another clock.
    pub fn translate_times(&mut self, translate: impl Fn(u64) -> u64) {
        if let Self::Seen { activities, .. } = self {
            translate_activities(activities, &translate);
        }
    }
}

fn translate_status(status: &mut Status, translate: &impl Fn(u64) -> u64) {
    match status {
        Status::Starting { times, .. } | Status::Up { times, .. } => translate_all(times, translate),
        Status::Dead { death } | Status::Stopped { death } => translate_death(death, translate),
        Status::Failed { death, earlier } => {
            translate_death(death, translate);
            for death in earlier {
                translate_death(death, translate);
            }
        }
        Status::Restarting { .. } | Status::Gone | Status::Stalled { .. } | Status::Resumed => {}
    }
}

fn translate_death(death: &mut Death, translate: &impl Fn(u64) -> u64) {
    translate_all(&mut death.times, translate);
}

fn translate_all(times: &mut Times, translate: &impl Fn(u64) -> u64) {
    let all = [
        &mut times.started_ns,
        &mut times.up_ns,
        &mut times.died_ns,
        &mut times.detected_ns,
    ];
    for time in all.into_iter().flatten() {
        *time = translate(*time);
    }
}

fn translate_activities(activities: &mut [Activity], translate: &impl Fn(u64) -> u64) {
    for (_, since_ns) in activities.iter_mut().flat_map(|one| &mut one.running) {
        *since_ns = translate(*since_ns);
    }
}
