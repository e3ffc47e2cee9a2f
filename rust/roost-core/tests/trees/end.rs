//! One end of a session, with its half of the connection.

use std::ops::ControlFlow;

use roost_core::limits::{ACK_DELAY_NS, POSTED_BYTES_MAX, POSTED_WAIT_NS, REPLAY_BYTES_MAX};
use roost_core::session::{Session, SessionConfig};
use roost_core::wire::{Content, Part, PortItem};

use crate::random::Random;

pub(crate) struct End {
    pub(crate) session: Session,
    /// What has come over the connection and was not taken.
    input: Vec<u8>,
    /// The membership epoch that this end has applied.
    pub(crate) epoch: u32,
    /// What was taken, in order.
    pub(crate) taken: Vec<u64>,
    /// What was put into the session, in order.
    pub(crate) said: Vec<u64>,
    /// Frames that had to wait for an epoch.
    pub(crate) held: u64,
}

impl End {
    pub(crate) fn new() -> Self {
        Self {
            session: Session::new(SessionConfig {
                ack_delay_ns: Some(ACK_DELAY_NS),
                early_bytes_max: REPLAY_BYTES_MAX,
                ..SessionConfig::default()
            }),
            input: Vec::new(),
            epoch: 0,
            taken: Vec::new(),
            said: Vec::new(),
            held: 0,
        }
    }

    /// Put a value into the session. Each is a number, and bytes that are the same for all who get it.
    pub(crate) fn say(&mut self, number: u64, length: usize) {
        let item = PortItem {
            port: number,
            flags: 0,
        };
        let bytes = vec![number.to_le_bytes()[0]; length];
        let pushed = self.session.push(&item, &[Part::Inline(&bytes)]);
        pushed.expect("far less than a session keeps");
        self.said.push(number);
    }

    /// Bytes have come over the connection. Gives what is new.
    pub(crate) fn receive(&mut self, now_ns: u64, bytes: &[u8]) -> Vec<u64> {
        self.input.extend_from_slice(bytes);
        let (epoch, mut new, mut held) = (self.epoch, Vec::new(), 0);
        let used = self.session.receive(now_ns, &self.input, &mut |frame| {
            take(epoch, &frame, &mut new, &mut held)
        });
        self.input.drain(..used.expect("right frames"));
        self.note(new, held)
    }

    /// Frames have come along the tree. Gives what is new.
    pub(crate) fn receive_posted(&mut self, now_ns: u64, bytes: &[u8]) -> Vec<u64> {
        let (epoch, mut new, mut held) = (self.epoch, Vec::new(), 0);
        let taken = self.session.receive_posted(now_ns, bytes, &mut |frame| {
            take(epoch, &frame, &mut new, &mut held)
        });
        taken.expect("right frames");
        self.note(new, held)
    }

    fn note(&mut self, new: Vec<u64>, held: u64) -> Vec<u64> {
        self.held += held;
        self.taken.extend(&new);
        if self.session.ack_due() {
            self.session.push_ack();
        }
        new
    }

    /// Give what is unsent to the tree, if it may.
    pub(crate) fn post(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        self.session.post(now_ns + POSTED_WAIT_NS, POSTED_BYTES_MAX)
    }

    /// Write some of what is unsent.
    pub(crate) fn write(&mut self, random: &mut Random) -> Vec<u8> {
        let unsent = self.session.unsent().collect::<Vec<_>>().concat();
        let count = if random.percent(20) {
            random.index(unsent.len() + 1)
        } else {
            unsent.len()
        };
        self.session.sent(count);
        unsent[..count].to_vec()
    }

    /// The connection is another one.
    pub(crate) fn resume(&mut self, peer_received: u64) {
        self.input.clear();
        self.session.resume(peer_received).expect("of this session");
    }
}

fn take(
    epoch: u32,
    frame: &roost_core::wire::Frame<'_>,
    new: &mut Vec<u64>,
    held: &mut u64,
) -> ControlFlow<()> {
    if frame.head.epoch > epoch {
        *held += 1;
        return ControlFlow::Break(());
    }
    if let Content::PortItem(item, _) = frame.content {
        new.push(item.port);
    }
    ControlFlow::Continue(())
}
