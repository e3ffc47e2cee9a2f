//! How a proc ended.

use serde::{Deserialize, Serialize};

/// How a process ended, as its parent sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// From the status word of `wait`, which `/proc/…/stat` and the template also give.
    pub fn from_wait_status(status: i32) -> Self {
        match status & 0x7f {
            0 => Self::Code((status >> 8) & 0xff),
            signal => Self::Signal(signal),
        }
    }

    /// Whether it ended by itself and in order.
    pub fn is_clean(self) -> bool {
        self == Self::Code(0)
    }
}

/// What kind of end it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeathKind {
    /// The process ended by itself.
    Exit,
    /// A signal ended it.
    Signal,
    /// The kernel's memory killer ended it.
    Oom,
    /// It never came up.
    Start,
    /// It was told to end.
    Stopped,
    /// Its host was lost: nobody saw it end.
    Lost,
}

/// When things happened to one incarnation, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Times {
    /// Its process was asked for.
    pub started_ns: Option<u64>,
    /// It was ready.
    pub up_ns: Option<u64>,
    /// Its end was seen.
    pub died_ns: Option<u64>,
    /// Its end was told.
    pub detected_ns: Option<u64>,
}

/// One end of one incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    /// What kind of end.
    pub kind: DeathKind,
    /// How the process ended; none when there was none or nobody could say.
    pub exit: Option<Exit>,
    /// What a person acts on.
    pub reason: String,
    /// The last lines that it wrote to stderr.
    pub stderr: String,
    /// Its process, where there was one.
    pub pid: Option<u32>,
    /// The last message of the receiver of this notice that it had started; none when they had no lane.
    pub started: Option<u64>,
    /// The last frame that it may have written to the receiver, over a lane between hosts; none when they had no lane.
    pub said: Option<u64>,
    /// When.
    pub times: Times,
    /// Whether a signal that its agent sent in the course of a stop ended it: it did not end by itself in time.
    pub forced: bool,
}
