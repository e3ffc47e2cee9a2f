//! Connections: two pipes of bytes that take their time, in pieces of any size, and can be cut at any byte.

use std::collections::VecDeque;

use crate::random::Random;

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    /// Pieces on the way, each with the time when it arrives.
    under_way: VecDeque<(u64, Vec<u8>)>,
    /// Bytes in the reader's socket.
    arrived: Vec<u8>,
    /// The writer's end is closed: after what is here, the reader sees the end.
    pub(crate) ended: bool,
}

impl Pipe {
    fn bytes(&self) -> usize {
        self.arrived.len() + self.under_way.iter().map(|(_, piece)| piece.len()).sum::<usize>()
    }

    pub(crate) fn room(&self, capacity: usize) -> usize {
        if self.ended {
            0
        } else {
            capacity.saturating_sub(self.bytes())
        }
    }

    /// Takes as many of the bytes as there is room for; returns how many.
    pub(crate) fn write(&mut self, bytes: &[u8], capacity: usize, arrival: u64) -> usize {
        let count = bytes.len().min(self.room(capacity));
        if count > 0 {
            let arrival = self.arrival(arrival);
            self.under_way.push_back((arrival, bytes[..count].to_vec()));
        }
        count
    }

    /// When something sent now arrives: never before what was sent earlier.
    pub(crate) fn arrival(&self, arrival: u64) -> u64 {
        self.under_way
            .back()
            .map_or(arrival, |(last, _)| arrival.max(*last))
    }

    pub(crate) fn arrive(&mut self, now: u64) {
        while let Some((_, piece)) = self.under_way.pop_front_if(|(arrival, _)| *arrival <= now) {
            self.arrived.extend(piece);
        }
    }

    /// Reads some of what has arrived.
    pub(crate) fn read(&mut self, random: &mut Random) -> Vec<u8> {
        let all = self.arrived.len();
        let count = if random.percent(80) {
            all
        } else {
            random.index(all + 1)
        };
        self.arrived.drain(..count).collect()
    }

    /// Reads all there is, on the way or not: what a socket of the same host gives after its writer has died.
    pub(crate) fn drain(&mut self) -> Vec<u8> {
        self.arrive(u64::MAX);
        std::mem::take(&mut self.arrived)
    }

    pub(crate) fn has_arrived(&self) -> bool {
        !self.arrived.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes() == 0
    }

    /// Loses everything on the way from some byte on.
    pub(crate) fn cut(&mut self, random: &mut Random) {
        self.ended = true;
        let under_way = self.bytes() - self.arrived.len();
        let mut kept = random.index(under_way + 1);
        for (_, piece) in &mut self.under_way {
            piece.truncate(kept);
            kept -= piece.len();
        }
        self.under_way.retain(|(_, piece)| !piece.is_empty());
    }
}

/// How far an end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its hello was not sent yet: an acceptor waits for the other's.
    Silent,
    /// Its hello was sent; the other's has not been read.
    Greeting,
    /// Frames flow.
    Live,
    /// Nothing is read or written any more.
    Closed,
}

#[derive(Debug)]
pub(crate) struct End {
    pub(crate) node: usize,
    pub(crate) incarnation: u32,
    pub(crate) stage: Stage,
    /// Bytes read and not yet used.
    pub(crate) buffer: Vec<u8>,
}

/// A connection; end 0 has asked for it. Pipe 0 carries what end 0 writes.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) ends: [End; 2],
    pub(crate) pipes: [Pipe; 2],
}

impl Connection {
    pub(crate) fn new(first: (usize, u32), second: (usize, u32)) -> Self {
        let end = |(node, incarnation)| End {
            node,
            incarnation,
            stage: Stage::Silent,
            buffer: Vec::new(),
        };
        Self {
            ends: [end(first), end(second)],
            pipes: [Pipe::default(), Pipe::default()],
        }
    }

    /// Whether nobody uses it any more.
    pub(crate) fn is_over(&self) -> bool {
        self.ends.iter().all(|end| end.stage == Stage::Closed)
    }
}
