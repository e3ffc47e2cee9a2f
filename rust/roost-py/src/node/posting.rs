//! Frames along the tree of hosts: what the driver has for many procs of other hosts at once, and what they answer.

use pyo3::prelude::*;
use roost_core::control::Bytes;
use roost_core::id::ProcId;
use roost_core::limits::{POSTED_ANSWER_BYTES_MAX, POSTED_BYTES_MAX, POSTED_WAIT_NS};

use super::{Action, Node, State};
use crate::peer::{Letter, Letters, Link};

impl State {
    /// From now on, until the next flush, what is for procs of other hosts waits for that: so many may get something at once
    /// that the tree is worth it. Says whether it is.
    pub(crate) fn hold(&mut self) -> bool {
        self.holds = self.far_links >= self.tree_procs_min;
        self.holds
    }

    /// Write what these procs are to get: along the tree where they are many.
    pub(super) fn flush_all(&mut self, procs: Vec<u64>, actions: &mut Vec<Action>) {
        if procs.len() < self.tree_procs_min {
            for proc in procs {
                self.flush_one(proc, actions);
            }
            return;
        }
        let until_ns = crate::now_ns() + POSTED_WAIT_NS;
        let mut letters = Vec::with_capacity(procs.len());
        for proc in procs {
            match self.post(proc, None, until_ns) {
                Some(letter) => letters.push(letter),
                None => self.flush_one(proc, actions),
            }
        }
        self.posted(letters, until_ns, actions);
    }

    /// Answer by the way that the last frames from there came. False when that is the connection.
    pub(super) fn flush_back(&mut self, proc: u64, actions: &mut Vec<Action>) -> bool {
        let link = self.peers.get(&proc).and_then(|peer| peer.link.as_ref());
        let Some(carrier) = link.and_then(|link| link.far.as_ref()?.carrier) else {
            return false;
        };
        let until_ns = crate::now_ns() + POSTED_WAIT_NS;
        let letter = self.post(proc, Some(carrier), until_ns);
        let is_posted = letter.is_some();
        self.posted(letter.into_iter().collect(), until_ns, actions);
        is_posted
    }

    fn post(&mut self, proc: u64, carrier: Option<u64>, until_ns: u64) -> Option<Letter> {
        let link = self.peers.get_mut(&proc)?.link.as_mut()?;
        let bytes_max = if carrier.is_some() {
            POSTED_ANSWER_BYTES_MAX
        } else {
            POSTED_BYTES_MAX
        };
        let (session, frames) = link.post(until_ns, bytes_max)?;
        Some(Letter {
            proc: ProcId::new(proc)?,
            session,
            carrier,
            frames: Bytes::from(frames),
        })
    }

    fn posted(&mut self, letters: Vec<Letter>, until_ns: u64, actions: &mut Vec<Action>) {
        if !letters.is_empty() {
            actions.push(Action::Post(letters));
            self.tick_at(until_ns, actions);
        }
    }

    /// What came along the tree is taken as if it had come over the connection.
    fn take_letter(&mut self, py: Python<'_>, letter: &Letter, actions: &mut Vec<Action>) {
        let proc = letter.proc.get();
        let link = self.peers.get(&proc).and_then(|peer| peer.link.as_ref());
        let session = link.and_then(|link| link.far.as_ref()).map(|far| far.session);
        // Of another session it is of no use; and whoever is not here yet gets it again, over the connection.
        if session == Some(letter.session) && link.is_some_and(Link::is_open) {
            self.parse(py, proc, Some(letter), actions);
        }
    }
}

pub(super) fn hold(node: &Node, py: Python<'_>) -> PyResult<()> {
    let mut actions = Vec::new();
    {
        let mut state = node.lock();
        if state.hold() {
            state.schedule(&mut actions);
        }
    }
    node.act(py, actions)
}

pub(super) fn take_letters(node: &Node, py: Python<'_>, letters: &Letters) -> PyResult<()> {
    let mut actions = Vec::new();
    {
        let mut state = node.lock();
        state.turn += 1;
        for letter in letters.take() {
            state.take_letter(py, &letter, &mut actions);
        }
    }
    node.act(py, actions)?;
    node.note_releases(py)
}
