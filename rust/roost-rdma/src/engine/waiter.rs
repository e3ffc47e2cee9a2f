//! What wakes the thread.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

/// Events taken at once; the others are there the next time.
const EVENTS_MAX: usize = 128;

/// Lanes of a link in an event's number.
const LANE_BITS: u32 = 8;

/// What a lane is watched for; others' ends of it come with data that is in front of them.
const LANE_EVENTS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP);

/// Any of these: the other end is not there any more.
const CUT_EVENTS: epoll::EventFlags = epoll::EventFlags::RDHUP
    .union(epoll::EventFlags::HUP)
    .union(epoll::EventFlags::ERR);

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Inbox,
    Lane {
        link: u64,
        lane: usize,
    },
    /// The end of a process of this host.
    Process {
        link: u64,
    },
    /// Queue pairs beside a link.
    Nics {
        link: u64,
    },
}

impl Source {
    fn number(self) -> u64 {
        match self {
            Self::Inbox => 0,
            Self::Lane { link, lane } => link << LANE_BITS | lane as u64,
            Self::Process { link } => link << LANE_BITS | ((1 << LANE_BITS) - 1),
            Self::Nics { link } => link << LANE_BITS | ((1 << LANE_BITS) - 2),
        }
    }

    fn of(number: u64) -> Self {
        let (link, lane) = (number >> LANE_BITS, number & ((1 << LANE_BITS) - 1));
        match (link, lane) {
            (0, _) => Self::Inbox,
            (link, lane) if lane == (1 << LANE_BITS) - 1 => Self::Process { link },
            (link, lane) if lane == (1 << LANE_BITS) - 2 => Self::Nics { link },
            (link, lane) => Self::Lane {
                link,
                lane: usize::try_from(lane).expect("eight bits"),
            },
        }
    }
}

/// What the thread waits for.
pub(super) struct Waiter(OwnedFd);

impl Waiter {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    pub(super) fn watch(&self, what: &impl AsFd, source: Source) -> io::Result<()> {
        let number = epoll::EventData::new_u64(source.number());
        let events = match source {
            Source::Lane { .. } => LANE_EVENTS,
            _ => epoll::EventFlags::IN,
        };
        Ok(epoll::add(&self.0, what, number, events)?)
    }

    /// Whether it is also to be told when the lane takes more.
    pub(super) fn watch_output(&self, what: &impl AsFd, lane: Source, is_wanted: bool) {
        let number = epoll::EventData::new_u64(lane.number());
        let out = if is_wanted {
            epoll::EventFlags::OUT
        } else {
            epoll::EventFlags::empty()
        };
        // The socket is in the set until the link goes; nothing else can be wrong with it.
        let _ = epoll::modify(&self.0, what, number, LANE_EVENTS | out);
    }

    /// It wakes the thread no more.
    pub(super) fn forget(&self, what: &impl AsFd) {
        // A socket that is cut off already is as it should be.
        let _ = epoll::delete(&self.0, what);
    }

    /// What there is to be done, within this time where one is given; of a connection, whether its other end is gone.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Vec<(Source, bool)> {
        let timeout = timeout.map(|left| Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS_MAX);
        // It fails only when a signal came; then the next turn sees the same.
        let _ = epoll::wait(
            &self.0,
            rustix::buffer::spare_capacity(&mut events),
            timeout.as_ref(),
        );
        let of = |event: &epoll::Event| {
            let flags = event.flags;
            (Source::of(event.data.u64()), flags.intersects(CUT_EVENTS))
        };
        events.iter().map(of).collect()
    }
}
