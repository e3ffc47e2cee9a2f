//! The agent: who is up, who died, what it had started; and what procs do when they hear it.

use roost_core::wire::Content;

use crate::frames::inline_bytes;
use crate::ledger::{Life, Outcome};
use crate::peer::{Node, Peer, Status, read_payload};
use crate::setup::MILLISECOND;
use crate::world::{Event, Notice, World};

impl World {
    /// A life begins; everybody hears of it in time.
    pub(crate) fn start(&mut self, life: Life) {
        self.nodes[life.0] = Node::new(life, &self.setup);
        self.epoch += 1;
        let epoch = self.epoch;
        let members = self.members.clone();
        self.members[life.0] = Status::Up(life.1);
        self.tell(life, Notice::Snapshot { epoch, members });
        let others = self
            .nodes
            .iter()
            .filter(|node| node.alive && node.life != life)
            .map(|node| node.life);
        for other in others.collect::<Vec<_>>() {
            self.tell(other, Notice::Up { epoch, life });
            if !self.setup.between_hosts {
                let connection = self.make_connection(life, other);
                self.tell(life, Notice::Connected { connection, end: 0 });
                self.tell(other, Notice::Connected { connection, end: 1 });
            }
        }
        let (left, pause) = (self.setup.verbs_each, self.random.below(20 * MILLISECOND));
        self.after(pause, Event::Verb { life, left });
    }

    /// Sends a notice; those to one proc arrive in order.
    fn tell(&mut self, life: Life, notice: Notice) {
        let arrival = self.now + self.delay();
        let node = &mut self.nodes[life.0];
        node.notices_until = node.notices_until.max(arrival);
        node.notices.push_back(notice);
        let at = node.notices_until;
        self.at(at, Event::Notice { life });
    }

    pub(crate) fn crash(&mut self) {
        let alive = self
            .nodes
            .iter()
            .filter(|node| node.alive)
            .map(|node| node.life)
            .collect::<Vec<_>>();
        // One stays, to tell the tale.
        if alive.len() < 2 {
            return;
        }
        let life = self.random.pick(&alive);
        self.tally.crashes += 1;
        self.nodes[life.0].alive = false;
        let numbers = self.connections.keys().copied().collect::<Vec<_>>();
        for number in numbers {
            for end in 0..2 {
                if self.connections.contains_key(&number) && self.life_at(number, end) == life {
                    self.lose_end(number, end);
                }
            }
        }
        let time = self.random.below(20 * MILLISECOND);
        self.after(time, Event::Detected { life });
    }

    /// The process at this end is gone: what it wrote stays readable on one host; the network loses some of it.
    fn lose_end(&mut self, number: u32, end: usize) {
        if self.setup.between_hosts {
            let connection = self.connections.get_mut(&number).expect("a connection");
            connection.pipes[end].cut(&mut self.random);
        }
        self.close(number, end);
    }

    pub(crate) fn detected(&mut self, life: Life) {
        self.epoch += 1;
        let epoch = self.epoch;
        self.members[life.0] = Status::Dead(life.1);
        for node in 0..self.setup.procs {
            let hearer = self.nodes[node].life;
            if self.nodes[node].alive {
                let page = self.started.get(&(life, hearer)).copied().unwrap_or(0);
                let started = (!self.setup.between_hosts).then_some(page);
                self.tell(hearer, Notice::Dead { epoch, life, started });
            }
        }
        if self.setup.restarts {
            let time = self.random.below(200 * MILLISECOND);
            self.after(time, Event::Restart { node: life.0 });
        }
    }

    pub(crate) fn restart(&mut self, node: usize) {
        let incarnation = self.nodes[node].life.1 + 1;
        self.start((node, incarnation));
    }

    pub(crate) fn notice(&mut self, life: Life) {
        match self.nodes[life.0]
            .notices
            .pop_front()
            .expect("one for each event")
        {
            Notice::Snapshot { epoch, members } => {
                self.nodes[life.0].epoch = epoch;
                self.nodes[life.0].status.clone_from(&members);
                self.nodes[life.0].status[life.0] = Status::Up(life.1);
                for (node, status) in members
                    .into_iter()
                    .enumerate()
                    .filter(|(node, _)| *node != life.0)
                {
                    if let Status::Up(incarnation) = status {
                        self.meet(life, (node, incarnation));
                    }
                }
                self.apply_epoch(life, epoch);
            }
            Notice::Up { epoch, life: other } => {
                self.meet(life, other);
                self.apply_epoch(life, epoch);
            }
            Notice::Dead {
                epoch,
                life: other,
                started,
            } => {
                // What has arrived counts, and was written before: it is read first.
                self.apply_epoch(life, epoch);
                self.mourn(life, other, started);
            }
            Notice::Connected { connection, end } => {
                let Some(found) = self.connections.get(&connection) else {
                    return;
                };
                let peer = (found.ends[1 - end].node, found.ends[1 - end].incarnation);
                if self.nodes[life.0].peer(peer).is_none() {
                    return self.close(connection, end);
                }
                self.attach(life, peer, connection);
                self.greet(connection, end, peer);
                self.readable(connection, end);
            }
        }
    }

    /// A proc hears that another is up.
    fn meet(&mut self, life: Life, other: Life) {
        let mut peer = Peer::new(other, &self.setup);
        let node = &mut self.nodes[life.0];
        assert!(
            node.peers[other.0].is_none(),
            "a death is told before the next life"
        );
        peer.session.set_epoch(node.epoch);
        node.status[other.0] = Status::Up(other.1);
        node.peers[other.0] = Some(peer);
        if self.setup.between_hosts && life.0 < other.0 {
            let delay = self.delay();
            self.dial_after(delay, life, other, 0);
        }
    }

    /// Frames that had to wait for this epoch go on.
    fn apply_epoch(&mut self, life: Life, epoch: u32) {
        let node = &mut self.nodes[life.0];
        node.epoch = epoch;
        for peer in node.peers.iter_mut().flatten() {
            peer.session.set_epoch(epoch);
        }
        let mine = |(number, connection): (&u32, &crate::network::Connection)| {
            let at = connection
                .ends
                .iter()
                .position(|end| (end.node, end.incarnation) == life)?;
            Some((*number, at))
        };
        let mine = self.connections.iter().filter_map(mine).collect::<Vec<_>>();
        for (number, end) in mine {
            if self.connections.contains_key(&number) {
                self.advance(number, end);
            }
        }
    }

    /// A proc hears of a death: it reads what has arrived, then returns what is left to those who sent it.
    fn mourn(&mut self, life: Life, dead: Life, started: Option<u64>) {
        if self.nodes[life.0].status[dead.0] != Status::Up(dead.1) {
            return;
        }
        self.drain(life, dead);
        let node = &mut self.nodes[life.0];
        node.status[dead.0] = Status::Dead(dead.1);
        let Some(peer) = node.peers[dead.0].take() else {
            return;
        };
        let number = peer.connection;
        let fate = |sequence: u64| match started {
            Some(started) if sequence > started => Outcome::NotDelivered,
            _ => Outcome::Unknown,
        };
        let mut before = peer.session.acknowledged();
        peer.session.undelivered(0, |frame| {
            assert!(frame.head.sequence > before, "each frame once, in order");
            before = frame.head.sequence;
            let Content::Message(message, parts) = frame.content else {
                return;
            };
            let (id, _) = read_payload(&inline_bytes(parts));
            for (_, rank) in message.runs.targets() {
                // A call that was answered before it was acknowledged has had its end.
                if message.call == 0 || node.pending.remove(&(id, rank)).is_some() {
                    self.ledger.outcome((id, rank), fate(frame.head.sequence));
                }
            }
        });
        assert_eq!(
            before,
            peer.session.last_sequence(),
            "all that is not acknowledged comes back"
        );
        for (rank, message) in peer.waiting.iter().flatten() {
            node.pending.remove(&(message.id, *rank));
            self.ledger.outcome((message.id, *rank), Outcome::NotDelivered);
        }
        let left = node
            .pending
            .extract_if(.., |_, pending| pending.to == dead)
            .collect::<Vec<_>>();
        for (key, pending) in left {
            self.ledger.outcome(
                key,
                fate(pending.sequence.expect("what waits was returned above")),
            );
        }
        if let Some(number) = number {
            let end = usize::from(self.life_at(number, 1) == life);
            self.close(number, end);
        }
    }

    /// On one host everything that the dead wrote is in the socket; from another host, what has arrived.
    fn drain(&mut self, life: Life, dead: Life) {
        let Some(number) = self.nodes[life.0].peer(dead).and_then(|peer| peer.connection) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let end = usize::from((connection.ends[1].node, connection.ends[1].incarnation) == life);
        let bytes = connection.pipes[1 - end].drain();
        connection.ends[end].buffer.extend(bytes);
        self.advance(number, end);
    }
}
