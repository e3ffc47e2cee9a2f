//! What was sent, and what became of it: the promises, checked.

use std::collections::{BTreeMap, VecDeque};

/// One life of one proc.
pub(crate) type Life = (usize, u32);

/// Who sends to which actor: the pair within which order holds.
type Pair = (Life, Life, u32);

/// One message for one rank.
pub(crate) type Key = (u64, u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The endpoint has answered.
    Answered,
    /// It was cancelled before it started.
    Dropped,
    /// It surely never started.
    NotDelivered,
    /// Nobody can say whether it started.
    Unknown,
}

/// How far it came at its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    Sent,
    Entered,
    Started,
}

#[derive(Debug)]
struct Record {
    from: Life,
    to: Life,
    slot: u32,
    call: bool,
    progress: Progress,
    /// Its sender has given it up.
    cancelled: bool,
    outcome: Option<Outcome>,
}

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    records: BTreeMap<Key, Record>,
    order: BTreeMap<Pair, VecDeque<Key>>,
    /// What was refused at once, because too much waited.
    pub(crate) refused: u64,
    /// A digest of all that happened, to compare two runs of one seed.
    digest: u64,
    pub(crate) counts: Counts,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) started: u64,
    pub(crate) answered: u64,
    pub(crate) dropped: u64,
    pub(crate) not_delivered: u64,
    pub(crate) unknown: u64,
}

impl Ledger {
    fn note(&mut self, what: u64, key: Key) {
        for number in [what, key.0, u64::from(key.1)] {
            self.digest = (self.digest ^ number)
                .wrapping_mul(0x0000_0100_0000_01b3)
                .rotate_left(17);
        }
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    /// The verb has returned: from here on the message has a fate.
    pub(crate) fn sent(&mut self, key: Key, call: bool, from: Life, to: Life, slot: u32) {
        self.note(1, key);
        self.counts.sent += 1;
        let record = Record {
            from,
            to,
            slot,
            call,
            progress: Progress::Sent,
            cancelled: false,
            outcome: None,
        };
        assert!(
            self.records.insert(key, record).is_none(),
            "each message is sent once"
        );
        self.order.entry((from, to, slot)).or_default().push_back(key);
    }

    /// It lies in the mailbox of its actor.
    pub(crate) fn entered(&mut self, key: Key, from: Life, to: Life, slot: u32) {
        self.note(2, key);
        let record = self.records.get_mut(&key).expect("what arrives was sent");
        assert_eq!(
            (record.from, record.to, record.slot),
            (from, to, slot),
            "D4: it reaches who it was meant for"
        );
        assert_eq!(record.progress, Progress::Sent, "D1: {key:?} arrives once");
        assert_eq!(
            record.outcome, None,
            "D3: {key:?} does not arrive after it was returned"
        );
        record.progress = Progress::Entered;
    }

    /// Its endpoint starts.
    pub(crate) fn started(&mut self, key: Key) {
        self.note(3, key);
        self.counts.started += 1;
        let record = self.records.get_mut(&key).expect("what starts was sent");
        assert_eq!(record.progress, Progress::Entered, "D1: {key:?} starts once");
        record.progress = Progress::Started;
        let order = self
            .order
            .get_mut(&(record.from, record.to, record.slot))
            .expect("sent before");
        assert_eq!(order.pop_front(), Some(key), "D1: in order, none lost");
    }

    /// It leaves the order without starting: cancelled in a queue or in the mailbox.
    pub(crate) fn removed(&mut self, key: Key) {
        self.note(4, key);
        let record = &self.records[&key];
        assert!(
            record.progress < Progress::Started,
            "what is dropped has not started"
        );
        let order = self
            .order
            .get_mut(&(record.from, record.to, record.slot))
            .expect("sent before");
        order.retain(|other| *other != key);
    }

    pub(crate) fn cancelled(&mut self, key: Key) {
        self.records
            .get_mut(&key)
            .expect("what is cancelled was sent")
            .cancelled = true;
    }

    /// Its sender hears what became of it.
    pub(crate) fn outcome(&mut self, key: Key, outcome: Outcome) {
        self.note(5 + outcome as u64, key);
        let record = self.records.get_mut(&key).expect("what ends was sent");
        assert_eq!(record.outcome, None, "D3: {key:?} ends once, now as {outcome:?}");
        record.outcome = Some(outcome);
        let counts = &mut self.counts;
        match outcome {
            Outcome::Answered => {
                assert!(record.progress == Progress::Started, "what answers has started");
                counts.answered += 1;
            }
            Outcome::Dropped => {
                assert!(
                    record.cancelled && record.progress < Progress::Started,
                    "only what was given up is dropped"
                );
                counts.dropped += 1;
            }
            Outcome::NotDelivered => {
                assert!(
                    record.progress < Progress::Started,
                    "D3: {key:?} is called not delivered, but it has started"
                );
                counts.not_delivered += 1;
            }
            Outcome::Unknown => counts.unknown += 1,
        }
    }

    /// All faults are over and nothing moves any more: every message must have a fate.
    pub(crate) fn settle(&self, is_alive: impl Fn(Life) -> bool) {
        for (key, record) in self.records.iter().filter(|(_, record)| is_alive(record.from)) {
            let returned = matches!(record.outcome, Some(Outcome::NotDelivered | Outcome::Unknown));
            assert!(
                !(returned && is_alive(record.to)),
                "D3: {key:?} was returned by the living: {record:?}"
            );
            if record.call {
                assert!(
                    record.outcome.is_some(),
                    "D3, D6: {key:?} never ended: {record:?}"
                );
            } else if is_alive(record.to) {
                assert!(
                    record.progress == Progress::Started,
                    "D1: broadcast {key:?} was lost: {record:?}"
                );
            } else {
                assert!(
                    record.progress >= Progress::Entered || returned,
                    "D3: broadcast {key:?} was lost: {record:?}"
                );
            }
        }
    }
}
