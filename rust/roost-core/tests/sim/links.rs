//! Connections: how they are made, greeted, read, written, cut and replaced.

use roost_core::id::{Incarnation, JobId, ProcId};
use roost_core::wire::{Hello, Resume, Version};

use crate::ledger::Life;
use crate::network::{Connection, Stage};
use crate::peer::Status;
use crate::setup::{MILLISECOND, SECOND};
use crate::world::{Event, World};

fn proc(node: usize) -> ProcId {
    ProcId::new(node as u64 + 100).expect("not zero")
}

fn hello(life: Life) -> Hello {
    let version = Version::ours((0, 1, 0), (3, 11));
    Hello {
        version,
        job: JobId([7; 16]),
        proc: proc(life.0),
        incarnation: Incarnation(life.1),
        to: None,
        link: None,
    }
}

/// The session of two lives: between other lives it is another one.
fn session_number(first: Life, second: Life) -> u64 {
    let (low, high) = (first.min(second), first.max(second));
    u64::from(low.1) << 32 | u64::from(high.1)
}

impl World {
    pub(crate) fn life_at(&self, connection: u32, end: usize) -> Life {
        let end = &self.connections[&connection].ends[end];
        (end.node, end.incarnation)
    }

    /// A connection that the agent has made, between procs of one host.
    pub(crate) fn make_connection(&mut self, first: Life, second: Life) -> u32 {
        let number = self.next_connection;
        self.next_connection += 1;
        self.connections.insert(number, Connection::new(first, second));
        number
    }

    /// Has a peer called after a pause, unless it will be before.
    pub(crate) fn dial_after(&mut self, pause: u64, life: Life, peer: Life, tries: u32) {
        let at = self.now + pause;
        let Some(entry) = self.nodes[life.0].peer(peer) else {
            return;
        };
        if entry.dial_at.is_none_or(|due| due > at) {
            entry.dial_at = Some(at);
            self.at(at, Event::Dial { life, peer, tries });
        }
    }

    /// Calls a peer over the network; tries again until it is there or known to be dead.
    pub(crate) fn dial(&mut self, life: Life, peer: Life, tries: u32) {
        let now = self.now;
        let node = &mut self.nodes[life.0];
        let known_up = node.status[peer.0] == Status::Up(peer.1);
        let Some(entry) = node.peer(peer).filter(|_| known_up) else {
            return;
        };
        if entry.dial_at.is_none_or(|due| due > now) {
            return; // Another call is due, or was made.
        }
        entry.dial_at = None;
        // A greeting that takes long is given up: it may still arrive, later than the next.
        if let Some(used) = entry.connection
            && (self.stage_of(used, life) != Stage::Greeting || self.random.percent(70))
        {
            return;
        }
        let backoff = ((50 * MILLISECOND) << tries.min(5)).min(SECOND);
        let again = backoff / 2 + self.random.below(backoff / 2);
        self.dial_after(again, life, peer, tries + 1);
        let there = self.nodes[peer.0].alive;
        if !there || (self.now < self.setup.faults_end_ns && self.random.percent(20)) {
            return;
        }
        // Whoever lives at that address now is called: it may be another life than the one that is meant.
        let called = self.nodes[peer.0].life;
        let connection = self.make_connection(life, called);
        self.nodes[life.0].peer(peer).expect("a known peer").connections += 1;
        self.attach(life, peer, connection);
        self.greet(connection, 0, peer);
    }

    fn stage_of(&self, connection: u32, life: Life) -> Stage {
        let ends = &self.connections[&connection].ends;
        let end = usize::from((ends[1].node, ends[1].incarnation) == life);
        ends[end].stage
    }

    /// From here on the peer's frames come over this connection and no other.
    pub(crate) fn attach(&mut self, life: Life, peer: Life, connection: u32) {
        let peer = self.nodes[life.0].peer(peer).expect("a known peer");
        let old = peer.connection.replace(connection);
        if let Some(old) = old.filter(|old| *old != connection) {
            let ends = &self.connections[&old].ends;
            let end = usize::from((ends[1].node, ends[1].incarnation) == life);
            self.close(old, end);
        }
    }

    /// Sends our hello, and from where the session goes on.
    pub(crate) fn greet(&mut self, connection: u32, end: usize, peer: Life) {
        let life = self.life_at(connection, end);
        let mut bytes = hello(life).encode().to_vec();
        if self.setup.between_hosts {
            let entry = self.nodes[life.0].peer(peer).expect("a known peer");
            let (session, received) = (session_number(life, peer), entry.session.received());
            bytes.extend(
                Resume {
                    session,
                    connection: entry.connections,
                    received,
                }
                .encode(),
            );
        }
        self.end_mut(connection, end).stage = Stage::Greeting;
        let written = self.write(connection, end, &bytes);
        let cut = self.connections[&connection].pipes[end].ended;
        assert!(cut || written == bytes.len(), "a fresh connection takes a hello");
    }

    fn end_mut(&mut self, connection: u32, end: usize) -> &mut crate::network::End {
        &mut self.connections.get_mut(&connection).expect("a connection").ends[end]
    }

    /// Writes bytes in pieces that take their time; returns how many were taken.
    fn write(&mut self, connection: u32, end: usize, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            let left = bytes.len() - written;
            let piece = if self.random.percent(70) {
                left
            } else {
                self.random.index(left) + 1
            };
            let arrival = self.now + self.delay();
            let capacity = self.socket_bytes();
            let pipe = &mut self.connections.get_mut(&connection).expect("a connection").pipes[end];
            let arrival = pipe.arrival(arrival);
            let count = pipe.write(&bytes[written..written + piece], capacity, arrival);
            if count > 0 {
                self.at(
                    arrival,
                    Event::Arrive {
                        connection,
                        end: 1 - end,
                    },
                );
            }
            written += count;
            if count < piece {
                break;
            }
        }
        written
    }

    /// What a connection takes before it is read. A hello always fits.
    fn socket_bytes(&self) -> usize {
        self.setup.socket_bytes.max(Hello::BYTES + Resume::BYTES)
    }

    /// Writes what the session has to say, if there is a connection that is ready for it.
    pub(crate) fn flush(&mut self, life: Life, peer: usize) {
        let Some(entry) = self.nodes[life.0].peers[peer].as_mut() else {
            return;
        };
        if let Some(at) = entry.session.next_wakeup()
            && entry.wakeup.is_none_or(|earlier| at < earlier)
        {
            entry.wakeup = Some(at);
            self.at(at.max(self.now), Event::Wakeup { life, peer });
        }
        let Some(entry) = self.nodes[life.0].peers[peer].as_ref() else {
            return;
        };
        let Some(connection) = entry.connection else {
            return;
        };
        let ends = &self.connections[&connection].ends;
        let end = usize::from((ends[1].node, ends[1].incarnation) == life);
        if ends[end].stage != Stage::Live {
            return;
        }
        // One vectored write takes a few pieces at most, and no more than the socket has room for.
        let mut room = self.connections[&connection].pipes[end].room(self.socket_bytes());
        let mut bytes = Vec::new();
        for piece in entry.session.unsent().take(4) {
            bytes.extend(&piece[..piece.len().min(room)]);
            room -= piece.len().min(room);
        }
        let written = self.write(connection, end, &bytes);
        if let Some(entry) = self.nodes[life.0].peers[peer].as_mut() {
            entry.session.sent(written);
            if room > 0 && written > 0 && entry.session.has_unsent() {
                self.at(self.now, Event::Writable { connection, end });
            }
        }
    }

    pub(crate) fn writable(&mut self, connection: u32, end: usize) {
        if self.connections.contains_key(&connection)
            && self.connections[&connection].ends[end].stage == Stage::Live
        {
            let (life, peer) = (self.life_at(connection, end), self.life_at(connection, 1 - end));
            self.flush(life, peer.0);
        }
    }

    pub(crate) fn wakeup(&mut self, life: Life, peer: usize) {
        let now = self.now;
        let Some(entry) = self.nodes[life.0].peers[peer].as_mut() else {
            return;
        };
        entry.wakeup = None;
        entry.session.handle_timeout(now);
        self.flush(life, peer);
    }

    /// Bytes or the end have reached an end of a connection.
    pub(crate) fn readable(&mut self, number: u32, end: usize) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if connection.ends[end].stage == Stage::Closed {
            return;
        }
        let pipe = &mut connection.pipes[1 - end];
        pipe.arrive(now);
        let bytes = pipe.read(&mut self.random);
        let more = pipe.has_arrived();
        connection.ends[end].buffer.extend(&bytes);
        if !bytes.is_empty() {
            self.at(
                now,
                Event::Writable {
                    connection: number,
                    end: 1 - end,
                },
            );
        }
        self.advance(number, end);
        if more {
            self.at(
                now,
                Event::Arrive {
                    connection: number,
                    end,
                },
            );
        }
        let Some(connection) = self.connections.get(&number) else {
            return;
        };
        if connection.pipes[1 - end].ended && connection.pipes[1 - end].is_empty() {
            self.close(number, end);
        }
    }

    /// Goes as far with the bytes at this end as they reach: through the greeting, then frames.
    pub(crate) fn advance(&mut self, number: u32, end: usize) {
        let connection = &self.connections[&number];
        match connection.ends[end].stage {
            // On one host the agent hands the connection over; before that it is not the proc's.
            Stage::Silent if !self.setup.between_hosts => {}
            Stage::Silent | Stage::Greeting => self.read_greeting(number, end),
            Stage::Live => self.read_frames(number, end),
            Stage::Closed => {}
        }
    }

    fn read_greeting(&mut self, number: u32, end: usize) {
        let life = self.life_at(number, end);
        let between_hosts = self.setup.between_hosts;
        let Some(bytes) = self.connections[&number].ends[end]
            .buffer
            .first_chunk::<{ Hello::BYTES }>()
        else {
            return;
        };
        let theirs = Hello::decode(bytes, &hello(life)).expect("all are of one job and version");
        let node = self.life_at(number, 1 - end).0;
        // An acceptor takes whoever is up; who has called has one life in mind.
        let expected = match self.nodes[life.0].status[node] {
            Status::Unheard => return,
            Status::Up(incarnation) | Status::Dead(incarnation) => incarnation,
        };
        let stage = self.connections[&number].ends[end].stage;
        if stage == Stage::Silent && theirs.incarnation > Incarnation(expected) {
            return; // The agent has not told us yet: the bytes wait.
        }
        if theirs.expect(proc(node), Incarnation(expected)).is_err()
            || self.nodes[life.0].peer((node, expected)).is_none()
        {
            self.tally.refused_hellos += 1;
            self.close(number, end);
            return;
        }
        let peer = (node, expected);
        assert_eq!(
            peer,
            self.life_at(number, 1 - end),
            "D4: a hello is taken from who is meant"
        );
        let used = Hello::BYTES + if between_hosts { Resume::BYTES } else { 0 };
        let buffer = &self.connections[&number].ends[end].buffer;
        if buffer.len() < used {
            return;
        }
        if between_hosts {
            let theirs = Resume::decode(buffer[Hello::BYTES..].first_chunk().expect("enough bytes"));
            if !self.may_resume(life, peer, stage, theirs) {
                self.tally.refused_hellos += 1;
                return self.close(number, end);
            }
            if stage == Stage::Silent {
                self.attach(life, peer, number);
                self.greet(number, end, peer);
            }
            self.resume(life, peer, theirs.received);
        }
        let end_state = self.end_mut(number, end);
        end_state.buffer.drain(..used);
        end_state.stage = Stage::Live;
        self.flush(life, peer.0);
        self.read_frames(number, end);
    }

    /// Whether a connection goes on with the session that this proc has, and is not older than the one it uses.
    fn may_resume(&mut self, life: Life, peer: Life, stage: Stage, theirs: Resume) -> bool {
        if theirs.session != session_number(life, peer) {
            return false;
        }
        let entry = self.nodes[life.0].peer(peer).expect("a known peer");
        let last = entry.connections;
        let newer = if stage == Stage::Silent {
            theirs.connection > last
        } else {
            theirs.connection == last
        };
        if newer {
            entry.connections = theirs.connection;
        }
        newer
    }

    fn resume(&mut self, life: Life, peer: Life, received: u64) {
        let stale = self.random.percent(self.setup.stale_resumes_percent);
        let random = &mut self.random;
        let session = &mut self.nodes[life.0].peer(peer).expect("a known peer").session;
        // Going back further than needed must do no harm: the other end drops the doubles.
        let acknowledged = session.acknowledged();
        let from = if stale && received > acknowledged {
            random.between(acknowledged, received)
        } else {
            received
        };
        session.resume(from).expect("both ends are of one session");
        self.tally.resumes += 1;
    }

    /// An end stops using a connection; the other reads what was written, then sees the end.
    pub(crate) fn close(&mut self, number: u32, end: usize) {
        let life = self.life_at(number, end);
        let arrival = self.now + self.delay();
        let connection = self.connections.get_mut(&number).expect("a connection");
        if connection.ends[end].stage == Stage::Closed {
            return;
        }
        connection.ends[end].stage = Stage::Closed;
        connection.ends[end].buffer.clear();
        connection.pipes[end].ended = true;
        let arrival = connection.pipes[end].arrival(arrival);
        self.at(
            arrival,
            Event::Arrive {
                connection: number,
                end: 1 - end,
            },
        );
        self.detach(life, number);
        if self.connections[&number].is_over() {
            self.connections.remove(&number);
        }
    }

    /// Forgets a connection that has ended, and calls again where that is possible.
    fn detach(&mut self, life: Life, number: u32) {
        if !self.is_alive(life) {
            return;
        }
        let Some(entry) = self.nodes[life.0]
            .peers
            .iter_mut()
            .flatten()
            .find(|peer| peer.connection == Some(number))
        else {
            return;
        };
        entry.connection = None;
        let peer = entry.life;
        if self.setup.between_hosts && life.0 < peer.0 {
            // Never at once: whoever refused this connection may refuse the next.
            let pause = self.delay() + 20 * MILLISECOND;
            self.dial_after(pause, life, peer, 0);
        }
    }

    /// The network loses a connection: each end sees the end after what still gets through.
    pub(crate) fn cut(&mut self) {
        let live = self
            .connections
            .iter()
            .filter(|(_, connection)| !connection.pipes[0].ended);
        let numbers = live.map(|(number, _)| *number).collect::<Vec<_>>();
        if numbers.is_empty() {
            return;
        }
        let number = self.random.pick(&numbers);
        self.tally.cuts += 1;
        for end in 0..2 {
            let delay = self.delay();
            let connection = self.connections.get_mut(&number).expect("a connection");
            connection.pipes[end].cut(&mut self.random);
            let arrival = connection.pipes[end].arrival(self.now + delay);
            self.at(
                arrival,
                Event::Arrive {
                    connection: number,
                    end: 1 - end,
                },
            );
        }
    }
}
