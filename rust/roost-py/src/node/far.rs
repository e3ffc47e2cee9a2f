//! Connections to other hosts: replaced ones, the timer of their sessions, frames whose parts go ahead.

use std::os::fd::AsRawFd;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::{Action, Node, State};
use crate::peer::{FarLane, Fed, Link, Stalled};

/// How often parts that go ahead are put into a session before others have their turn: some megabytes.
const FEEDS_MAX: u32 = 3;

/// From one look at what is not acknowledged to the next.
const WATCH_NS: u64 = 1_000_000_000;

/// Timers that are so close are one.
const TICK_APART_NS: u64 = 100_000_000;

/// A timer may be as much early.
const EARLY_NS: u64 = WATCH_NS / 10;

impl State {
    /// The other end of a proc's connection is gone.
    pub(super) fn ended(&mut self, proc: u64, actions: &mut Vec<Action>) {
        let Some(link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) else {
            return;
        };
        if link.far.is_none() {
            actions.extend(link.raw_fd().map(|fd| Action::Ended { fd }));
            return;
        }
        // The session goes on: only news of its proc end it.
        if let Some((fd, is_needed)) = link.break_off() {
            actions.push(Action::Close(fd));
            if is_needed {
                actions.push(Action::Redial(proc));
            }
        }
    }

    /// Bytes from another host were read: what follows from them beside the frames.
    pub(super) fn after_far(&mut self, proc: u64, actions: &mut Vec<Action>) {
        let Some(link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) else {
            return;
        };
        let Some(far) = &mut link.far else { return };
        if far.is_stale() {
            return self.ended(proc, actions);
        }
        let is_fresh = far.went_live();
        let wakeup = link.session.next_wakeup();
        if is_fresh || link.has_ahead() {
            self.flush_one(proc, actions);
        }
        if let Some(at_ns) = wakeup {
            self.tick_at(at_ns, actions);
        }
    }

    pub(super) fn tick_at(&mut self, at_ns: u64, actions: &mut Vec<Action>) {
        // One that comes a little late is as good.
        if self
            .ticks_at_ns
            .is_none_or(|earlier_ns| at_ns + TICK_APART_NS < earlier_ns)
        {
            self.ticks_at_ns = Some(at_ns);
            let delay = std::time::Duration::from_nanos(at_ns.saturating_sub(crate::now_ns()));
            actions.push(Action::Tick(delay.as_secs_f64()));
        }
    }

    /// Look before long whether what was sent is acknowledged.
    pub(super) fn watch_far(&mut self, actions: &mut Vec<Action>) {
        if self.watch_ns.is_none() {
            self.watch_ns = Some(crate::now_ns() + WATCH_NS);
            actions.push(Action::Tick(
                std::time::Duration::from_nanos(WATCH_NS).as_secs_f64(),
            ));
        }
    }

    /// End connections over which nothing seems to arrive, for others to take their place.
    fn end_silent(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let (mut silent, mut waits) = (Vec::new(), false);
        for peer in self.peers.values_mut() {
            match peer.link.as_mut().and_then(|link| link.is_silent(now_ns)) {
                None => {}
                Some(false) => waits = true,
                Some(true) => silent.push(peer.id),
            }
        }
        for proc in silent {
            self.ended(proc, actions);
        }
        if waits {
            self.watch_far(actions);
        }
    }

    /// Look from time to time which connections are of no use.
    fn watch_idle(&mut self, actions: &mut Vec<Action>) {
        if self.idle_look_ns.is_none() {
            self.idle_look_ns = Some(crate::now_ns().saturating_add(self.idle_ns));
            actions.push(Action::Tick(
                std::time::Duration::from_nanos(self.idle_ns).as_secs_f64(),
            ));
        }
    }

    /// Close connections that were of no use since the last look; the next message makes another.
    fn end_idle(&mut self, actions: &mut Vec<Action>) {
        let (mut idle, mut stay) = (Vec::new(), false);
        for peer in self.peers.values_mut() {
            match peer.link.as_mut().and_then(Link::is_idle) {
                None => {}
                Some(false) => stay = true,
                Some(true) => idle.push(peer.id),
            }
        }
        for proc in idle {
            let link = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut());
            actions.extend(link.and_then(Link::rest).map(Action::Close));
        }
        if stay {
            self.watch_idle(actions);
        }
    }

    /// Have parts go ahead as far as the socket takes them, and their frames after them; `full` says that it takes no more for
    /// now. Whether there is more to do when it takes more.
    pub(super) fn flush_ahead(&mut self, proc: u64, mut full: bool, actions: &mut Vec<Action>) -> bool {
        let mut fed = 0;
        // A socket that is emptied as fast as it is filled must not keep everything else waiting.
        while !full && fed < FEEDS_MAX {
            fed += 1;
            let Some(link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) else {
                return false;
            };
            if !link.is_live() {
                return false;
            }
            match link.feed() {
                Fed::Pieces => {}
                Fed::Whole if Python::attach(|py| self.send_whole(py, proc, actions)) => {}
                Fed::Nothing | Fed::Whole => return false,
            }
            if let Some(link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) {
                full = link.flush();
            }
        }
        true
    }

    /// Send the first frame whose parts have all gone ahead. False when it has to wait for room.
    fn send_whole(&mut self, py: Python<'_>, proc: u64, actions: &mut Vec<Action>) -> bool {
        let Some(peer) = self.peers.get_mut(&proc) else {
            return false;
        };
        let Some((frame, pushed)) = peer.link.as_mut().and_then(|link| link.push_whole(py)) else {
            return false;
        };
        match frame {
            Stalled::Message(message, _) => {
                match pushed {
                    Ok(number) => {
                        self.left(py, proc, &message, number);
                        actions.push(Action::Drop(vec![message.payload.pickle.into_any()]));
                    }
                    Err(_) => actions.push(Action::Unsent { proc, message }),
                }
                self.made_room(actions);
            }
            Stalled::Reply(_, payload) | Stalled::PortItem(_, payload) => {
                debug_assert!(
                    pushed.is_ok(),
                    "what is too large for any frame is refused before"
                );
                actions.push(Action::Drop(vec![payload.pickle.into_any()]));
            }
        }
        true
    }
}

pub(super) fn adopt_far(
    node: &Node,
    py: Python<'_>,
    proc: u64,
    incarnation: u32,
    lane: &FarLane,
    slot: Option<u32>,
) -> PyResult<()> {
    let lane = lane
        .take()
        .ok_or_else(|| PyRuntimeError::new_err("this connection is in use already"))?;
    if node.lock().peer(proc).given_up == Some(lane.session) {
        // The other end asked for it before it heard: taken for a new one, it would end the session that follows.
        return Ok(());
    }
    let session = node
        .lock()
        .link(proc, incarnation)
        .and_then(|link| link.far.as_ref().map(|far| far.session));
    if session.is_some_and(|session| session != lane.session) {
        let text = "its other end has begun a new session".to_owned();
        node.act(py, vec![Action::SessionLost { proc, text }])?;
    }
    let mut actions = Vec::new();
    let raw = lane.fd.as_raw_fd();
    {
        let mut state = node.lock();
        let hello = state.hello;
        let dials = lane.dials;
        match state.link(proc, incarnation) {
            Some(link) if link.far.as_ref().is_some_and(|far| far.session == lane.session) => {
                let useless = link.replace(lane, &hello);
                if link.raw_fd() != Some(raw) {
                    // An older attempt that arrived late.
                    drop(useless);
                    return Ok(());
                }
                actions.extend(useless.map(Action::Close));
                state.flush_one(proc, &mut actions);
            }
            _ => {
                let link = Link::to_host(
                    lane,
                    &hello,
                    (slot, state.page.clone()),
                    state.epoch,
                    state.clock_ns,
                );
                state.connect(py, proc, incarnation, link, &mut actions);
            }
        }
        if dials {
            state.watch_idle(&mut actions);
        }
    }
    node.read_on(py, proc, raw)?;
    node.act(py, actions)?;
    // What came with the last of the handshake is in no socket.
    node.read_from(py, proc)
}

pub(super) fn set_clock(node: &Node, offset_ns: i64) {
    let mut state = node.lock();
    state.clock_ns = offset_ns;
    let links = state.peers.values_mut().filter_map(|peer| peer.link.as_mut());
    for far in links.filter_map(|link| link.far.as_mut()) {
        far.clock_ns = offset_ns;
    }
}

pub(super) fn tick(node: &Node, py: Python<'_>) -> PyResult<()> {
    let mut actions = Vec::new();
    {
        let mut state = node.lock();
        state.ticks_at_ns = None;
        let now_ns = crate::now_ns();
        let is_due = |at_ns: &mut u64| *at_ns <= now_ns + EARLY_NS;
        if state.watch_ns.take_if(is_due).is_some() {
            state.end_silent(now_ns, &mut actions);
        }
        if state.idle_look_ns.take_if(is_due).is_some() {
            state.end_idle(&mut actions);
        }
        let mut due = Vec::new();
        let mut next: Option<u64> = None;
        state.far_links = 0;
        let state = &mut *state;
        for peer in state.peers.values_mut() {
            let Some(link) = peer.link.as_mut().filter(|link| link.far.is_some()) else {
                continue;
            };
            state.far_links += 1;
            if link.session.handle_timeout(now_ns) {
                due.push(peer.id);
            } else if let Some(at_ns) = link.session.next_wakeup() {
                next = Some(next.map_or(at_ns, |earlier| earlier.min(at_ns)));
            }
        }
        state.flush_all(due, &mut actions);
        if let Some(at_ns) = next {
            state.tick_at(at_ns, &mut actions);
        }
    }
    node.act(py, actions)
}
