//! Large payloads between hosts: they go ahead of their message in pieces, with whatever comes between.

use std::collections::BTreeMap;
use std::sync::Arc;

use roost_core::session::{Bulks, SessionError, Shared};
use roost_core::wire::{Bulk, BulkPart, Part, Parts, ProtocolError};

use crate::ledger::Key;
use crate::peer::{Outgoing, Peer};
use crate::setup::Setup;

/// What has gone ahead of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    bulk: u64,
    bytes: usize,
}

/// The payloads that are on their way to one peer, and those that come from it.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    sent: BTreeMap<Key, Sent>,
    last_bulk: u64,
    pub(crate) coming: Bulks<Vec<u8>>,
    /// Payloads that have come, and those that were given up, since this was last looked at.
    pub(crate) came: u64,
    pub(crate) gave_up: u64,
}

impl Peer {
    /// Sends the second half of a payload ahead, where it is large: the part that names it, when all has gone. Of two
    /// messages that are under way at once, pieces may take turns.
    pub(crate) fn push_ahead(&mut self, message: &Outgoing, rank: u32, setup: &Setup) -> Option<BulkPart> {
        let key = (message.id, rank);
        let from = message.payload.len() / 2;
        let length = message.payload.len() - from;
        let next = Sent {
            bulk: self.ahead.last_bulk + 1,
            bytes: 0,
        };
        let mut sent = self.ahead.sent.get(&key).copied().unwrap_or(next);
        let payload: Arc<Vec<u8>> = Arc::clone(&message.payload);
        let whole = Shared::new(payload);
        while sent.bytes < length {
            let piece = whole.piece(from + sent.bytes, setup.piece_bytes);
            let count = piece.length();
            match self.session.push_bulk(&header(sent, length), piece) {
                Ok(_) => {
                    sent.bytes += count;
                    self.ahead.last_bulk = self.ahead.last_bulk.max(sent.bulk);
                    self.ahead.sent.insert(key, sent);
                }
                Err(SessionError::Full { .. }) => return None,
                Err(error) => panic!("a piece within all limits: {error}"),
            }
        }
        Some(BulkPart {
            bulk: sent.bulk,
            length: length as u64,
        })
    }

    /// The message that names the payload has left.
    pub(crate) fn named(&mut self, message: &Outgoing, rank: u32) {
        self.ahead.sent.remove(&(message.id, rank));
    }

    /// The message will not be sent.
    pub(crate) fn give_up(&mut self, message: &Outgoing, rank: u32) {
        if let Some(sent) = self.ahead.sent.remove(&(message.id, rank)) {
            let length = message.payload.len() - message.payload.len() / 2;
            self.session.give_up_bulk(&header(sent, length));
        }
    }
}

fn header(sent: Sent, length: usize) -> Bulk {
    Bulk {
        bulk: sent.bulk,
        length: length as u64,
        offset: sent.bytes as u64,
        given_up: false,
        constant: false,
    }
}

impl Ahead {
    /// A piece has come.
    pub(crate) fn take(&mut self, bulk: &Bulk, piece: &[u8]) {
        if bulk.given_up {
            self.coming.give_up(bulk);
            self.gave_up += 1;
            return;
        }
        let room = self
            .coming
            .room(bulk, piece.len(), |_| Ok::<_, ProtocolError>(Vec::new()))
            .expect("D1: pieces come in order, once");
        room.extend_from_slice(piece);
        self.coming.filled(bulk, piece.len());
    }

    /// The bytes of a message's payload, those that came ahead included.
    pub(crate) fn payload(&mut self, parts: Parts<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in parts {
            match part {
                Part::Inline(inline) | Part::Constant(inline) => bytes.extend_from_slice(inline),
                Part::Segment(_) => {}
                Part::Bulk(bulk) => {
                    self.came += 1;
                    bytes.extend(self.coming.take(&bulk).expect("D1: it came before its frame"));
                }
            }
        }
        bytes
    }
}
