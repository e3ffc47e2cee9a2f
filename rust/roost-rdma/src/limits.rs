//! Every bound and time of this crate's links, each with its unit in the name and its reason.

use std::time::Duration;

/// Body of one message. What lists pieces is cut so that it fits; nothing else comes near.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Text in a message: reasons for people.
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 10;

/// Descriptors with one message: a process, its stamps, its memory.
pub(crate) const DESCRIPTORS_MAX: usize = 4;

/// Descriptors that came ahead of their messages. The kernel hands them over with the first byte of theirs, so one
/// message's are enough; a second's leave room for how reads may fall.
pub(crate) const DESCRIPTORS_WAITING_MAX: usize = 2 * DESCRIPTORS_MAX;

/// What moves as one over a connection: large enough that a header and an answer cost nothing beside it, small enough that
/// what was cut off is soon done again, and that a small transfer does not wait long behind a large one.
pub(crate) const CHUNK_BYTES_MAX: u64 = 512 << 10;

/// Pieces of one chunk. Small tensors go together, and the list stays far below a message's bound.
pub(crate) const CHUNK_PIECES_MAX: usize = 512;

/// Asked for and not yet there, of one connection: the next chunk is known to the owner before the last one has left, also
/// when the two are some milliseconds apart.
pub(crate) const LANE_WINDOW_BYTES: u64 = 2 << 20;

/// Chunks asked for and not yet there, of one connection. An owner ends the link of who asks for more.
pub(crate) const LANE_REQUESTS_MAX: usize = 64;

/// Requests that are not chunks and wait for their answer, over one link: leases, stamps, sums.
pub(crate) const LINK_REQUESTS_MAX: usize = 4_096;

/// Regions of one question for stamps.
pub(crate) const LOOK_REGIONS_MAX: usize = 1_024;

/// Taken from one connection before the others have their turn.
pub(crate) const TURN_BYTES_MAX: usize = 4 << 20;

/// Read at once beside a chunk's bytes: answers and heads.
pub(crate) const STAGING_BYTES: usize = 64 << 10;

/// Pieces of memory in one system call.
pub(crate) const SLICES_MAX: usize = 64;

/// Bytes of messages that wait for a connection that takes none. Who asks and does not read the answers loses the link.
pub(crate) const OUTGOING_BYTES_MAX: usize = 16 << 20;

/// Pauses before a link is asked for again.
pub(crate) const LINK_PAUSE_MIN: Duration = Duration::from_millis(50);
/// See [`LINK_PAUSE_MIN`].
pub(crate) const LINK_PAUSE_MAX: Duration = Duration::from_secs(1);

/// A link that was asked for and of which nothing was heard is asked for again.
pub(crate) const LINK_ANSWER_WAIT: Duration = Duration::from_secs(10);

/// A dropped region's memory is given back after this, whether or not all have answered.
pub(crate) const REVOKE_WAIT: Duration = Duration::from_secs(1);

/// A write that was given up has this long for what is on its way; then its link is cut, and the owner has as long again to
/// say that it has no such link any more.
pub(crate) const SETTLE_WAIT: Duration = Duration::from_secs(1);

/// Queue pairs have this long to be heard by the owner's NICs; then the link goes on without.
pub(crate) const NICS_WAIT: Duration = Duration::from_secs(2);
/// As long as this where nothing else may be used.
pub(crate) const NICS_WAIT_FORCED: Duration = Duration::from_secs(15);

/// Pauses between looks at a stamp in change, where the owner cannot say when it is over.
pub(crate) const LOOK_PAUSE_MIN: Duration = Duration::from_micros(100);
/// See [`LOOK_PAUSE_MIN`].
pub(crate) const LOOK_PAUSE_MAX: Duration = Duration::from_millis(2);

/// Lives of other processes that are known to be over.
pub(crate) const DEAD_REMEMBERED_MAX: usize = 4_096;

/// Transfers that are not done.
pub(crate) const TRANSFERS_MAX: usize = 65_536;

/// Connections of one link.
pub(crate) const LANES_MAX: usize = 64;

/// Copied within a host by the thread that asks, which may be an event loop's: some ten microseconds.
pub(crate) const NEAR_BYTES_MAX: u64 = 256 << 10;

/// Runs of such a copy.
pub(crate) const NEAR_RUNS_MAX: usize = 64;

/// Copied within a host by the engine's own thread: waking another takes as long. Half of what a turn may take.
pub(crate) const INLINE_BYTES_MAX: u64 = 256 << 10;

/// The same where it is the only transfer, so that nobody waits behind it.
pub(crate) const ALONE_BYTES_MAX: u64 = 1 << 20;

/// Bytes of one question for sums, which a thread sums as one: some milliseconds, after which others have their turn.
pub(crate) const SUM_BYTES_MAX: u64 = 16 << 20;

/// Questions for sums that are not answered, over one link.
pub(crate) const SUM_SLOTS: u8 = 16;
