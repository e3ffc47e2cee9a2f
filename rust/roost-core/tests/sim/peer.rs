//! What a proc has for each other proc: the real session and the real credit, and the queues that wait for them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use roost_core::credit::{QueueBound, ReceiveWindow, SendWindows};
use roost_core::id::MeshId;
use roost_core::session::{Session, SessionError};
use roost_core::wire::{
    Chain, FrameHeader, MessageHeader, Part, ReplyHeader, ReplyStatus, Run, RunsBuffer, SegmentPart,
};

use crate::ahead::Ahead;
use crate::ledger::{Key, Life};
use crate::setup::Setup;
use crate::world::Notice;

/// A captured message. Its bytes tell which one it is and what its sender knew.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    pub(crate) id: u64,
    pub(crate) call: bool,
    pub(crate) payload: Arc<Vec<u8>>,
    pub(crate) segment_bytes: u64,
}

impl Outgoing {
    pub(crate) fn bytes(&self) -> u64 {
        self.payload.len() as u64 + self.segment_bytes
    }

    /// The number, what the sender knew of the cluster, and filling that depends on the number.
    pub(crate) fn payload(id: u64, witness: Life, filling: usize) -> Vec<u8> {
        let mut payload = id.to_le_bytes().to_vec();
        payload.push(u8::try_from(witness.0).expect("few procs"));
        payload.extend(witness.1.to_le_bytes());
        payload.resize(payload.len() + filling, fill(id));
        payload
    }
}

fn fill(id: u64) -> u8 {
    id.to_le_bytes()[0] ^ 0x5a
}

/// Reads back what [`Outgoing::payload`] wrote, and checks that it is whole.
pub(crate) fn read_payload(payload: &[u8]) -> (u64, Life) {
    let (id, rest) = payload.split_first_chunk().expect("a number");
    let id = u64::from_le_bytes(*id);
    let (witness, rest) = rest.split_first().expect("a witness");
    let (incarnation, filling) = rest.split_first_chunk().expect("its incarnation");
    assert!(
        filling.iter().all(|byte| *byte == fill(id)),
        "D1: the payload is whole"
    );
    (id, (usize::from(*witness), u32::from_le_bytes(*incarnation)))
}

/// A call that waits for its answer.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) to: Life,
    pub(crate) slot: u32,
    /// None as long as it waits at the sender.
    pub(crate) sequence: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) life: Life,
    pub(crate) session: Session,
    pub(crate) windows: SendWindows,
    pub(crate) ahead: Ahead,
    /// Per slot, what waits for credit or for room in the session; each with its rank.
    pub(crate) waiting: Vec<VecDeque<(u32, Outgoing)>>,
    pub(crate) bound: QueueBound,
    /// Answers that wait for room in the session.
    pub(crate) answers: VecDeque<(ReplyHeader, usize)>,
    pub(crate) mailboxes: Vec<ReceiveWindow>,
    pub(crate) connection: Option<u32>,
    /// The number of the last connection that was called or taken.
    pub(crate) connections: u64,
    pub(crate) wakeup: Option<u64>,
    /// When it is called next.
    pub(crate) dial_at: Option<u64>,
}

impl Peer {
    pub(crate) fn new(life: Life, setup: &Setup) -> Self {
        let slots = setup.slots as usize;
        Self {
            life,
            session: Session::new(setup.session),
            windows: SendWindows::new(setup.window, setup.slots),
            ahead: Ahead::default(),
            waiting: vec![VecDeque::new(); slots],
            bound: QueueBound::new(setup.queue),
            answers: VecDeque::new(),
            mailboxes: vec![ReceiveWindow::default(); slots],
            connection: None,
            connections: 0,
            wakeup: None,
            dial_at: None,
        }
    }

    /// Whether a message to this actor may go ahead of nothing.
    pub(crate) fn is_open(&self, slot: u32) -> bool {
        self.waiting[slot as usize].is_empty() && self.windows.has_room(slot)
    }

    /// Sends one message to these actors, all of which have credit, unless the session is full.
    pub(crate) fn push_message(
        &mut self,
        message: &Outgoing,
        targets: &[(u32, u32)],
        setup: &Setup,
    ) -> Option<u64> {
        let mut runs = RunsBuffer::new();
        for run in runs_of(targets) {
            runs.push(run).expect("a possible run");
        }
        let header = MessageHeader {
            call: if message.call { message.id } else { 0 },
            mesh: MeshId::new(1).expect("not zero"),
            deadline_ns: 0,
            flags: 0,
            runs: runs.as_runs(),
            endpoint: "step",
            sizes: b"",
            chain: Chain::EMPTY,
        };
        let (head, rest) = message.payload.split_at(message.payload.len() / 2);
        let length = message.segment_bytes;
        let segment = Part::Segment(SegmentPart {
            segment: 1,
            generation: 1,
            offset: 0,
            length,
        });
        let is_large = message.payload.len() >= setup.ahead_bytes_min;
        let rest = if is_large {
            Part::Bulk(self.push_ahead(message, targets[0].1, setup)?)
        } else {
            Part::Inline(rest)
        };
        let sequence = self.push(&header, &[Part::Inline(head), segment, rest], setup)?;
        if is_large {
            self.named(message, targets[0].1);
        }
        assert!(
            self.windows.take_all(runs.as_runs(), message.bytes()),
            "each of them has credit"
        );
        Some(sequence)
    }

    pub(crate) fn push_answer(&mut self, reply: &ReplyHeader, length: usize, setup: &Setup) -> bool {
        self.push(reply, &[Part::Inline(&vec![7; length])], setup)
            .is_some()
    }

    /// Numbers a frame, if the session takes it; checks that what it holds stays bounded.
    pub(crate) fn push<H: FrameHeader>(
        &mut self,
        header: &H,
        parts: &[Part<'_>],
        setup: &Setup,
    ) -> Option<u64> {
        let before = self.session.last_sequence();
        let pushed = self.session.push(header, parts);
        let largest = usize::try_from(setup.payload_bytes_max).expect("small") + 1_024;
        // What needs no room (credit, cancels) is small and few; chunks are freed as a whole.
        let bound = setup.session.replay_bytes_max.max(largest) + (80 << 10);
        assert!(
            self.session.held_bytes() <= bound,
            "D5: {} bytes are held",
            self.session.held_bytes()
        );
        match pushed {
            Ok(sequence) => {
                assert_eq!(sequence, before + 1);
                Some(sequence)
            }
            Err(SessionError::Full { .. }) => None,
            Err(error) => panic!("a frame within all limits: {error}"),
        }
    }

    /// Moves on what waited, as far as credit and the session let it; tells of each message that got a number.
    pub(crate) fn pump(&mut self, setup: &Setup, mut numbered: impl FnMut(Key, u64)) {
        while let Some((reply, length)) = self.answers.pop_front() {
            if !self.push_answer(&reply, length, setup) {
                self.answers.push_front((reply, length));
                return;
            }
        }
        for slot in 0..setup.slots {
            while self.windows.has_room(slot) {
                let Some((rank, message)) = self.waiting[slot as usize].pop_front() else {
                    break;
                };
                let Some(sequence) = self.push_message(&message, &[(slot, rank)], setup) else {
                    self.waiting[slot as usize].push_front((rank, message));
                    return;
                };
                self.bound.leave(message.bytes());
                numbered((message.id, rank), sequence);
            }
        }
    }

    pub(crate) fn answer(&mut self, reply: ReplyHeader, length: usize, setup: &Setup) {
        if !self.answers.is_empty() || !self.push_answer(&reply, length, setup) {
            self.answers.push_back((reply, length));
        }
    }
}

/// The fewest runs that even steps allow, without looking far.
fn runs_of(targets: &[(u32, u32)]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for &(slot, rank) in targets {
        if let Some(run) = runs.last_mut()
            && (run.count == 1 || run.slot + run.count * run.slot_stride == slot)
            && (run.count == 1 || run.rank + run.count * run.rank_stride == rank)
        {
            if run.count == 1 {
                (run.slot_stride, run.rank_stride) = (slot - run.slot, rank - run.rank);
            }
            run.count += 1;
        } else {
            runs.push(Run::one(slot, rank));
        }
    }
    runs
}

/// A message in the mailbox of an actor.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) call: bool,
    pub(crate) from: Life,
    pub(crate) sequence: u64,
    pub(crate) bytes: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) busy: Option<Entry>,
}

/// What a proc knows of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Unheard,
    Up(u32),
    Dead(u32),
}

/// One life of one proc.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) life: Life,
    pub(crate) alive: bool,
    /// Its loop does nothing before this time.
    pub(crate) stalled_until: u64,
    pub(crate) epoch: u32,
    pub(crate) status: Vec<Status>,
    pub(crate) peers: Vec<Option<Peer>>,
    pub(crate) mailboxes: Vec<Mailbox>,
    pub(crate) pending: BTreeMap<Key, Pending>,
    /// Notices from the agent, in order, and when the last of them arrives.
    pub(crate) notices: VecDeque<Notice>,
    pub(crate) notices_until: u64,
}

impl Node {
    pub(crate) fn new(life: Life, setup: &Setup) -> Self {
        Self {
            life,
            alive: true,
            stalled_until: 0,
            epoch: 0,
            status: vec![Status::Unheard; setup.procs],
            peers: (0..setup.procs).map(|_| None).collect(),
            mailboxes: (0..setup.slots).map(|_| Mailbox::default()).collect(),
            pending: BTreeMap::new(),
            notices: VecDeque::new(),
            notices_until: 0,
        }
    }

    /// The peer entry for this life, if it is the one that is known.
    pub(crate) fn peer(&mut self, life: Life) -> Option<&mut Peer> {
        self.peers[life.0].as_mut().filter(|peer| peer.life == life)
    }

    /// The highest life of a proc that this one has heard of.
    pub(crate) fn has_heard_of(&self, life: Life) -> bool {
        match self.status[life.0] {
            Status::Unheard => false,
            Status::Up(incarnation) | Status::Dead(incarnation) => incarnation >= life.1,
        }
    }
}

/// A reply in its simplest form.
pub(crate) fn reply(key: Key, status: ReplyStatus) -> ReplyHeader {
    ReplyHeader {
        call: key.0,
        rank: key.1,
        status,
        flags: 0,
    }
}
