//! What one run is made of. Each seed turns some faults on and others off, so that none hides another.

use roost_core::credit::Amount;
use roost_core::limits;
use roost_core::session::SessionConfig;

use crate::random::Random;

pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;

#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) procs: usize,
    pub(crate) slots: u32,
    /// Connections may be replaced, and no page tells what a dead proc had started.
    pub(crate) between_hosts: bool,
    pub(crate) session: SessionConfig,
    pub(crate) window: Amount,
    pub(crate) queue: Amount,
    /// Time on the way, at most.
    pub(crate) delay_ns_max: u64,
    /// Bytes that a connection takes before it is read.
    pub(crate) socket_bytes: usize,
    /// How long an endpoint runs, at most.
    pub(crate) service_ns_max: u64,
    pub(crate) verbs_each: u64,
    /// Time between the verbs of a proc, at most.
    pub(crate) pause_ns_max: u64,
    pub(crate) payload_bytes_max: u64,
    /// Payloads from this size on go ahead of their message, in pieces of the other.
    pub(crate) ahead_bytes_min: usize,
    pub(crate) piece_bytes: usize,
    pub(crate) cuts: u64,
    pub(crate) crashes: u64,
    pub(crate) stalls: u64,
    pub(crate) cancels_percent: u64,
    pub(crate) casts_percent: u64,
    /// How often a hop loses a frame, or passes it on twice; the connection is given up when the gap is seen.
    pub(crate) losses_percent: u64,
    pub(crate) doubles_percent: u64,
    /// How often a resume goes back further than the peer asks.
    pub(crate) stale_resumes_percent: u64,
    pub(crate) restarts: bool,
    /// Faults happen before this time.
    pub(crate) faults_end_ns: u64,
}

impl Setup {
    pub(crate) fn new(random: &mut Random) -> Self {
        let between_hosts = random.percent(60);
        let some = |random: &mut Random, most: u64| {
            if random.percent(50) {
                random.between(1, most)
            } else {
                0
            }
        };
        let delay = [None, Some(limits::ACK_DELAY_NS), Some(MILLISECOND)];
        let ack_delay_ns = if between_hosts {
            delay[1 + random.index(2)]
        } else {
            random.pick(&delay)
        };
        let replay_bytes_max = random.pick(&[1 << 10, 8 << 10, 100 << 10, 400 << 10]);
        let window = Amount {
            messages: random.between(1, 40),
            bytes: random.pick(&[500, 8 << 10, 200 << 10]),
        };
        let queue = Amount {
            messages: random.between(1, 100),
            bytes: random.pick(&[1_000, 20 << 10, 1 << 20]),
        };
        let mut setup = Self {
            procs: random.index(7) + 2,
            slots: u32::try_from(random.between(1, 5)).expect("small"),
            between_hosts,
            session: SessionConfig {
                replay_bytes_max,
                ack_delay_ns,
                ..SessionConfig::default()
            },
            window,
            queue,
            delay_ns_max: random.pick(&[0, MILLISECOND, 20 * MILLISECOND, 500 * MILLISECOND]),
            socket_bytes: random.pick(&[100, 2_000, 200_000]),
            service_ns_max: random.pick(&[0, MILLISECOND, 100 * MILLISECOND]),
            verbs_each: random.between(5, 120),
            pause_ns_max: random.pick(&[0, MILLISECOND, 50 * MILLISECOND]),
            payload_bytes_max: random.pick(&[0, 300, 3_000, 150_000]),
            ahead_bytes_min: if between_hosts {
                random.pick(&[usize::MAX, 50, 2_000])
            } else {
                usize::MAX
            },
            piece_bytes: random.pick(&[20, 900, 20_000]),
            cuts: if between_hosts { some(random, 40) } else { 0 },
            crashes: some(random, 12),
            stalls: some(random, 8),
            cancels_percent: some(random, 30),
            casts_percent: some(random, 60),
            losses_percent: if between_hosts { some(random, 3) } else { 0 },
            doubles_percent: some(random, 5),
            stale_resumes_percent: some(random, 50),
            restarts: random.percent(80),
            faults_end_ns: random.pick(&[50 * MILLISECOND, SECOND, 5 * SECOND]),
        };
        // Some hundred pieces tell as much as thousands.
        let most = usize::try_from(setup.payload_bytes_max).expect("small");
        setup.piece_bytes = setup.piece_bytes.max(most / 200);
        if random.percent(15) {
            setup.with_much_under_way(random);
        }
        setup
    }

    /// Large frames, several chunks of them sent and not acknowledged.
    fn with_much_under_way(&mut self, random: &mut Random) {
        self.session.replay_bytes_max = 600 << 10;
        self.window = Amount {
            messages: 100,
            bytes: 1 << 20,
        };
        self.queue = Amount {
            messages: 20,
            bytes: 1 << 20,
        };
        self.socket_bytes = 500 << 10;
        self.delay_ns_max = random.between(20, 500) * MILLISECOND;
        self.payload_bytes_max = 100_000;
        self.verbs_each = random.between(5, 30);
    }
}
