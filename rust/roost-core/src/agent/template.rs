//! Which templates there are, and what they can do.

use std::collections::BTreeSet;

use super::proc::{Phase, Proc};
use super::{Agent, Output};
use crate::control::{Environ, TemplateKey, ToClient};
use crate::id::{Incarnation, ProcId};
use crate::limits::{TEMPLATE_REQUESTS_MAX, TEMPLATE_STARTS_MAX};

/// The number of a template in this agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TemplateId(pub u32);

#[derive(Debug)]
enum State {
    /// No process. The next launch starts one.
    Idle,
    /// It imports. `starts`: how often it was started without ever being ready.
    Loading { starts: u32 },
    /// It makes procs. `forks`: whether a fork of it is safe; else it executes them. `unanswered`: in its hands.
    Ready {
        forks: bool,
        unanswered: BTreeSet<ProcId>,
    },
}

#[derive(Debug)]
struct Template {
    key: TemplateKey,
    environ: Environ,
    state: State,
}

#[derive(Debug, Default)]
pub(super) struct Templates(Vec<Template>);

impl Templates {
    /// The template for this key, running or not.
    pub(super) fn wanted(&mut self, key: TemplateKey, environ: &Environ) -> TemplateId {
        let known = self.0.iter().position(|template| template.key == key);
        let index = known.unwrap_or_else(|| {
            self.0.push(Template {
                key,
                environ: environ.clone(),
                state: State::Idle,
            });
            self.0.len() - 1
        });
        TemplateId(u32::try_from(index).expect("templates are few"))
    }

    /// Whether it takes a request now: yes, with whether it may be one to fork, or not yet. The error is what has to
    /// be done first.
    pub(super) fn room(&mut self, id: TemplateId) -> Result<Option<bool>, Output> {
        let template = self.get(id);
        match &template.state {
            State::Ready { forks, unanswered } => {
                Ok((unanswered.len() < TEMPLATE_REQUESTS_MAX).then_some(*forks))
            }
            State::Loading { .. } => Ok(None),
            State::Idle => Err(template.start(id, 1)),
        }
    }

    /// A request is given to this template.
    pub(super) fn requested(&mut self, id: TemplateId, proc: ProcId) {
        if let State::Ready { unanswered, .. } = &mut self.get(id).state {
            unanswered.insert(proc);
        }
    }

    /// A request was answered, or will not be. Gives whether that made room.
    pub(super) fn answered(&mut self, id: TemplateId, proc: ProcId) -> bool {
        match &mut self.get(id).state {
            State::Ready { unanswered, .. } => unanswered.remove(&proc),
            _ => false,
        }
    }

    fn get(&mut self, id: TemplateId) -> &mut Template {
        &mut self.0[id.0 as usize]
    }
}

impl Template {
    fn start(&mut self, id: TemplateId, starts: u32) -> Output {
        self.state = State::Loading { starts };
        Output::StartTemplate {
            template: id,
            key: self.key.clone(),
            environ: self.environ.clone(),
        }
    }
}

impl Agent {
    /// A template will be wanted: it may as well import already.
    pub(super) fn prepare(&mut self, key: TemplateKey, environ: &Environ) {
        if self.closed {
            return;
        }
        let id = self.templates.wanted(key, environ);
        if let Err(start) = self.templates.room(id) {
            self.outputs.push_back(start);
        }
    }

    pub(super) fn template_ready(&mut self, id: TemplateId) {
        self.template_serves(id, true);
    }

    fn template_serves(&mut self, id: TemplateId, forks: bool) {
        self.templates.get(id).state = State::Ready {
            forks,
            unanswered: BTreeSet::new(),
        };
        self.launch_queued(id);
    }

    pub(super) fn template_refused(&mut self, id: TemplateId, reason: &str) {
        let mut owners: Vec<ProcId> = self.queued(id).into_iter().map(|(_, _, owner)| owner).collect();
        owners.sort_unstable();
        owners.dedup();
        for owner in owners {
            let text = format!("procs start cold, without a template: {reason}");
            self.send(owner, ToClient::Warning { text });
        }
        self.template_serves(id, false);
    }

    pub(super) fn template_failed(&mut self, now_ns: u64, id: TemplateId, reason: &str, stderr: &str) {
        // A later launch tries again: a module may have been repaired meanwhile.
        self.templates.get(id).state = State::Idle;
        for (proc, incarnation, _) in self.queued(id) {
            self.launch_failed(now_ns, proc, incarnation, reason.to_owned(), stderr.to_owned());
        }
    }

    pub(super) fn template_ended(
        &mut self,
        now_ns: u64,
        id: TemplateId,
        killed: bool,
        (reason, stderr): (&str, &str),
    ) {
        let template = self.templates.get(id);
        match template.state {
            State::Loading { starts } if killed && starts < TEMPLATE_STARTS_MAX => {
                let start = template.start(id, starts + 1);
                self.outputs.push_back(start);
            }
            State::Loading { .. } => self.template_failed(now_ns, id, reason, stderr),
            State::Ready { .. } => template.state = State::Idle,
            State::Idle => {}
        }
    }

    /// The template has answered for this proc: the next one has its turn.
    pub(super) fn template_answered(&mut self, id: ProcId) {
        let Some(template) = self.procs.get(&id).map(Proc::parent) else {
            return;
        };
        if self.templates.answered(template, id) {
            self.launch_queued(template);
        }
    }

    fn launch_queued(&mut self, id: TemplateId) {
        for (proc, ..) in self.queued(id) {
            self.launch(proc);
        }
    }

    /// Who waits for this template, in the order of the spawns.
    fn queued(&self, id: TemplateId) -> Vec<(ProcId, Incarnation, ProcId)> {
        let waits = |proc: &Proc| proc.parent() == id && matches!(proc.phase, Phase::Queued);
        let mut queued: Vec<_> = self.procs.iter().filter(|(_, proc)| waits(proc)).collect();
        queued.sort_unstable_by_key(|(_, proc)| proc.number);
        queued
            .into_iter()
            .map(|(&id, proc)| (id, proc.incarnation, proc.owner))
            .collect()
    }
}
