//! A proc's part of its connections to other hosts.

use std::os::fd::OwnedFd;

use roost_core::control::{ToAgent, ToClient};
use roost_core::id::ProcId;
use roost_core::trust::Credentials;
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{Client, FAR};
use crate::control::clock::now_ns;
use crate::control::net::{FarLanes, LaneNews};
use crate::control::shared::What;

impl Client {
    /// Go on with the connections to other hosts.
    pub(super) fn far_lanes(&mut self) {
        let Some(far) = &mut self.far else { return };
        for news in far.turn(now_ns()) {
            match news {
                LaneNews::Ready(ready) => self.door.push_lane(*ready),
                LaneNews::GivenUp { proc, reason } => {
                    let told = format!("is on a host that does not reach this one: {reason}");
                    self.lane_lost(proc, reason, told);
                }
                LaneNews::Link(made) => {
                    if let Some(links) = &mut self.links {
                        links.made(made);
                    }
                }
                LaneNews::Warning(text) => self.door.push(ToClient::Warning { text }, None),
                LaneNews::Greeted => self.send(&ToAgent::Greeted, None),
            }
        }
    }

    /// What lanes to other hosts are told; gives back what is not for them.
    pub(super) fn far_message(
        &mut self,
        message: ToClient,
        descriptor: Option<OwnedFd>,
    ) -> Option<(ToClient, Option<OwnedFd>)> {
        if let ToClient::Network(credentials) = &message {
            let opened = self.open_far(credentials);
            if let Err(text) = opened {
                self.door.push(ToClient::Warning { text }, None);
            }
            return None;
        }
        let far = self.far.as_mut();
        match (message, descriptor) {
            (
                ToClient::Dial {
                    proc,
                    incarnation,
                    slot,
                    session,
                    host,
                    addresses,
                },
                _,
            ) => {
                let addresses = addresses.iter().filter_map(|text| text.parse().ok()).collect();
                let way = (host, addresses);
                if let Some(far) = far {
                    far.dial(now_ns(), proc, (incarnation, slot, session), way);
                } else {
                    let reason = "connections to other hosts cannot be made here".to_owned();
                    self.lane_lost(proc, reason, "cannot make connections to other hosts".to_owned());
                }
            }
            (
                ToClient::Expect {
                    proc,
                    incarnation,
                    slot,
                    session,
                },
                _,
            ) => far?.expect(proc, incarnation, slot, session),
            (ToClient::Redial { proc }, _) => {
                far?.redial(now_ns(), proc);
            }
            (message @ (ToClient::DialLink { .. } | ToClient::ExpectLink { .. }), _) => {
                far?.link(now_ns(), message);
            }
            (ToClient::Incoming { preamble }, socket) => {
                let preamble = preamble.as_ref().try_into().ok();
                match (far, preamble, socket) {
                    (Some(far), Some(preamble), Some(socket)) => far.incoming(now_ns(), socket, preamble),
                    // Whoever called tries again, and the agent counts it no more.
                    _ => self.send(&ToAgent::Greeted, None),
                }
            }
            (ToClient::Clock { offset_ns }, _) => self.door.push(What::Clock { offset_ns }, None),
            (message, descriptor) => {
                if let (ToClient::Member(member), Some(far)) = (&message, far)
                    && member.status.is_end()
                {
                    far.ended(member.proc, member.incarnation);
                }
                return Some((message, descriptor));
            }
        }
        None
    }

    fn open_far(&mut self, credentials: &Credentials) -> Result<(), String> {
        if self.far.is_none() {
            let far = FarLanes::new(self.own, self.silence_ns).map_err(|error| error.to_string())?;
            epoll::add(
                &self.epoll,
                far.descriptor(),
                EventData::new_u64(FAR),
                EventFlags::IN,
            )
            .map_err(|error| error.to_string())?;
            self.far = Some(far);
        }
        let far = self.far.as_mut().expect("made above");
        far.set_credentials(credentials)
            .map_err(|error| error.to_string())
    }

    /// This process has no lane to a proc, for a reason as it says it itself and as the other end is told.
    pub(super) fn lane_lost(&mut self, proc: ProcId, reason: String, told: String) {
        self.door.push(ToClient::ConnectFailed { proc, reason }, None);
        // Else the agent would think of it as there, and give neither another.
        self.send(&ToAgent::ConnectLost { proc, reason: told }, None);
    }
}
