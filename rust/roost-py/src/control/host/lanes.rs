//! The control lanes of the procs: what they say, and room for what they are told.

use roost_core::agent::Input;
use roost_core::control::ToClient;
use roost_core::id::ProcId;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{HANDOVER, Host};
use crate::control::clock::now_ns;
use crate::control::lane::LaneError;
use crate::control::links::LinkDoor;
use crate::control::socket::{Blocked, IN_FLIGHT_RETRY_NS, room};

/// Messages taken from one proc before the others get their turn.
const MESSAGES_A_TURN_MAX: usize = 64;

impl Host {
    /// What a proc says.
    pub(super) fn client_readable(&mut self, id: ProcId, flags: EventFlags) {
        if flags.contains(EventFlags::OUT)
            && let Some(lane) = self
                .running
                .get_mut(&id)
                .and_then(|running| running.control.as_mut())
            && lane.flush().is_err()
        {
            self.close_lane(id);
        }
        self.hear(id, MESSAGES_A_TURN_MAX);
    }

    /// Take up to `count` messages from a proc.
    pub(super) fn hear(&mut self, id: ProcId, count: usize) {
        for _ in 0..count {
            let Some(running) = self.running.get_mut(&id) else {
                return;
            };
            let Some(lane) = running.control.as_mut() else {
                return;
            };
            match lane.receive() {
                Ok(arrived) => {
                    let descriptor = arrived.descriptor.map(|descriptor| self.keep(descriptor));
                    self.inputs.push_back(Input::Message {
                        from: id,
                        message: arrived.message,
                        descriptor,
                    });
                }
                Err(LaneError::Empty) => return,
                Err(error @ LaneError::Lost) => {
                    let text = format!("{}: {error}", running.label);
                    // Without its request the proc would wait for ever.
                    self.warn(text.clone());
                    self.tell(id, &ToClient::Warning { text }, None);
                }
                Err(LaneError::Closed) => return self.close_lane(id),
                Err(error @ LaneError::Broken(_)) => {
                    let text = format!("{}: {error}", running.label);
                    self.warn(text);
                    return self.close_lane(id);
                }
            }
        }
    }

    /// The proc at the other end ends itself when it sees this, unless it is ending anyway.
    pub(super) fn close_lane(&mut self, id: ProcId) {
        if let Some(lane) = self
            .running
            .get_mut(&id)
            .and_then(|running| running.control.take())
        {
            let _ = epoll::delete(&self.epoll, lane.socket());
        }
    }

    /// Ask for room only where something waits for it, and try again what nobody tells of.
    pub(super) fn watch_room(&mut self) {
        if self.door.blocked() == Some(Blocked::InFlight) {
            self.door.flush();
        }
        // Calls to `modify` fail only for a descriptor that is not registered, and that has nothing waiting.
        let handover = EventData::new_u64(HANDOVER);
        let _ = epoll::modify(
            &self.epoll,
            self.door.handover(),
            handover,
            room(self.door.blocked()),
        );
        if let Some(links) = &mut self.links {
            links.flush();
        }
        let mut in_flight = self.door.blocked() == Some(Blocked::InFlight)
            || self.links.as_ref().is_some_and(LinkDoor::is_blocked);
        for running in self.running.values_mut() {
            let Some(lane) = &mut running.control else {
                continue;
            };
            if lane.blocked() == Some(Blocked::InFlight) {
                // A lane that has failed is seen by its reader.
                let _ = lane.flush();
            }
            let blocked = lane.blocked();
            in_flight |= blocked == Some(Blocked::InFlight);
            if blocked != running.control_blocked {
                running.control_blocked = blocked;
                let data = EventData::new_u64(running.control_source);
                let _ = epoll::modify(&self.epoll, lane.socket(), data, EventFlags::IN | room(blocked));
            }
        }
        self.retry_at_ns = in_flight.then(|| now_ns() + IN_FLIGHT_RETRY_NS);
    }
}
