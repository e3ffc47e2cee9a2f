//! Which templates there are, and what they can do.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::proc::{Phase, Proc};
use super::{Agent, Output};
use crate::control::{Environ, TemplateKey, ToClient};
use crate::id::{HostId, Incarnation, ProcId};
use crate::limits::{TEMPLATE_REQUESTS_MAX, TEMPLATE_STARTS_MAX};

/// The number of a template in this agent, whatever host it is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
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
    host: HostId,
    key: TemplateKey,
    environ: Environ,
    state: State,
}

/// What a mesh's procs are made by, wherever they are.
#[derive(Debug)]
pub(super) struct Keys {
    /// What forks them.
    pub(super) template: TemplateKey,
    /// What executes them in a cold start: a template without modules of the user's.
    pub(super) light: TemplateKey,
}

/// The same on one host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parents {
    pub(super) template: TemplateId,
    pub(super) light: TemplateId,
}

/// Those of all hosts; no two have one number.
#[derive(Debug, Default)]
pub(super) struct Templates {
    all: BTreeMap<TemplateId, Template>,
    of_hosts: BTreeMap<HostId, Vec<TemplateId>>,
    last: u32,
}

impl Templates {
    /// The template for this key on a host, running or not.
    pub(super) fn wanted(&mut self, host: HostId, key: &TemplateKey, environ: &Environ) -> TemplateId {
        let here = self.of_hosts.entry(host).or_default();
        let is_it = |id: &&TemplateId| self.all.get(id).is_some_and(|template| template.key == *key);
        if let Some(&known) = here.iter().find(is_it) {
            return known;
        }
        let id = TemplateId(self.last);
        self.last = self.last.checked_add(1).expect("templates are few");
        here.push(id);
        self.all.insert(
            id,
            Template {
                host,
                key: key.clone(),
                environ: environ.clone(),
                state: State::Idle,
            },
        );
        id
    }

    /// The parents of a mesh's procs on a host.
    pub(super) fn parents(&mut self, host: HostId, keys: &Keys, environ: &Environ) -> Parents {
        Parents {
            template: self.wanted(host, &keys.template, environ),
            light: self.wanted(host, &keys.light, environ),
        }
    }

    /// Where a template is.
    pub(super) fn host(&self, id: TemplateId) -> Option<HostId> {
        self.all.get(&id).map(|template| template.host)
    }

    /// Nothing of this host is left.
    pub(super) fn forget(&mut self, host: HostId) {
        for id in self.of_hosts.remove(&host).unwrap_or_default() {
            self.all.remove(&id);
        }
    }

    /// Whether it takes a request now: yes, with whether it may be one to fork, or not yet. The error is what has to
    /// be done first.
    pub(super) fn room(&mut self, id: TemplateId) -> Result<Option<bool>, (HostId, Output)> {
        let Some(template) = self.all.get_mut(&id) else {
            return Ok(None);
        };
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
        if let Some(State::Ready { unanswered, .. }) = self.state(id) {
            unanswered.insert(proc);
        }
    }

    /// A request was answered, or will not be. Gives whether that made room.
    pub(super) fn answered(&mut self, id: TemplateId, proc: ProcId) -> bool {
        match self.state(id) {
            Some(State::Ready { unanswered, .. }) => unanswered.remove(&proc),
            _ => false,
        }
    }

    fn state(&mut self, id: TemplateId) -> Option<&mut State> {
        self.all.get_mut(&id).map(|template| &mut template.state)
    }
}

impl Template {
    fn start(&mut self, id: TemplateId, starts: u32) -> (HostId, Output) {
        self.state = State::Loading { starts };
        let start = Output::StartTemplate {
            template: id,
            key: self.key.clone(),
            environ: self.environ.clone(),
        };
        (self.host, start)
    }
}

impl Agent {
    /// A template will be wanted: it may as well import already.
    pub(super) fn prepare(&mut self, from: ProcId, key: &TemplateKey, environ: &Environ) {
        let Some(host) = self.host_of(from).filter(|_| !self.closed) else {
            return;
        };
        let id = self.templates.wanted(host, key, environ);
        if let Err((host, start)) = self.templates.room(id) {
            self.put(host, start);
        }
    }

    pub(super) fn template_ready(&mut self, id: TemplateId) {
        self.template_serves(id, true);
    }

    fn template_serves(&mut self, id: TemplateId, forks: bool) {
        if let Some(state) = self.templates.state(id) {
            *state = State::Ready {
                forks,
                unanswered: BTreeSet::new(),
            };
            self.launch_queued(id);
        }
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
        if let Some(state) = self.templates.state(id) {
            *state = State::Idle;
        }
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
        let Some(template) = self.templates.all.get_mut(&id) else {
            return;
        };
        match template.state {
            State::Loading { starts } if killed && starts < TEMPLATE_STARTS_MAX => {
                let (host, start) = template.start(id, starts + 1);
                self.put(host, start);
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
        let host = self.templates.host(id);
        let here = host.into_iter().flat_map(|host| self.hosts.procs(host));
        let mut queued: Vec<_> = here
            .filter_map(|id| Some((*id, self.procs.get(id)?)))
            .filter(|(_, proc)| waits(proc))
            .collect();
        queued.sort_unstable_by_key(|(_, proc)| proc.number);
        queued
            .into_iter()
            .map(|(id, proc)| (id, proc.incarnation, proc.owner))
            .collect()
    }
}
