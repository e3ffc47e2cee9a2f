//! Every bound and time of the core, each with its unit in the name and its reason.

/// Body of one frame. What is larger travels in shared segments or in several frames; a reader must never have to
/// hold more than this for one frame.
pub const FRAME_BODY_BYTES_MAX: usize = 64 << 20;

/// The inline parts of one message, its pickle among them: what a frame's body has room for beside the longest header with
/// the longest parts table.
pub const INLINE_BYTES_MAX: usize = FRAME_BODY_BYTES_MAX - (4 << 20);

/// One message with all its parts, those in shared segments included. It bounds what a single call can make a
/// receiver map.
pub const MESSAGE_BYTES_MAX: u64 = 4 << 30;

/// One piece of a part that travels ahead of its frame: other messages go between two of them, and a receiver that has
/// lost its connection gets at most this much again.
pub const BULK_PIECE_BYTES_MAX: usize = 1 << 20;

/// Parts of one message: the count is two bytes on the wire.
pub const MESSAGE_PARTS_MAX: usize = 65_535;

/// Runs of actors in one message: the count is two bytes on the wire.
pub const MESSAGE_RUNS_MAX: usize = 65_535;

/// Actors of one proc that one message may name over all its runs. Runs are compressed, so without this bound a
/// frame of a few bytes could make a receiver loop for ever. A proc of a million actors is past what we aim at.
pub const MESSAGE_TARGETS_MAX: u64 = 1 << 20;

/// Name of an endpoint, in bytes of UTF-8: the length is one byte on the wire.
pub const ENDPOINT_NAME_BYTES_MAX: usize = 255;

/// Sizes of the message's mesh, as the layer above writes them: the length is two bytes on the wire.
pub const MESSAGE_SIZES_BYTES_MAX: usize = 65_535;

/// Links in the chain of endpoints that wait for a call. A deeper chain is a runaway recursion; each link costs
/// 28 bytes in every message below it.
pub const CHAIN_LINKS_MAX: usize = 1_024;

/// What one session keeps for replay, and so what it may hold in all; beyond it senders wait. A larger frame goes
/// alone.
pub const REPLAY_BYTES_MAX: usize = 64 << 20;

/// A chunk of the outgoing log. Acknowledged memory is freed in whole chunks; 64 KiB is also what a Unix socket
/// takes in one write, about.
pub const LOG_CHUNK_BYTES: usize = 64 << 10;

/// The first chunk of a log, before it has shown that it needs more: a thousand idle peers must stay cheap.
pub const LOG_FIRST_CHUNK_BYTES: usize = 4 << 10;

/// Emptied chunks that a busy session keeps for reuse. They save a trip to the allocator, and page faults, for each
/// chunk; they go as soon as the log is empty.
pub const LOG_SPARE_CHUNKS_MAX: usize = 8;

/// Frames received since the last acknowledgement that make a standalone one due: below it, the next frame that
/// goes back anyway carries it.
pub const ACK_FRAMES_MAX: u64 = 256;

/// Bytes received since the last acknowledgement that make a standalone one due. Far below the replay bound, so that
/// a sender with large frames is never stopped by an acknowledgement that is waiting for company.
pub const ACK_BYTES_MAX: u64 = 1 << 20;

/// How long a received frame waits for a frame that carries its acknowledgement, where the session has a timer.
/// It sets how much is replayed after a reconnect, and costs ten small frames a second at most.
pub const ACK_DELAY_NS: u64 = 100_000_000;

/// Messages that one proc may have in the mailbox of one actor. Enough to keep a round trip of a busy pair full
/// (500,000 messages a second over 2 ms), small enough that a stuck actor holds little.
pub const MAILBOX_MESSAGES_MAX: u64 = 1_024;

/// Bytes of messages that one proc may have in the mailbox of one actor; one message may pass it, so that large
/// ones go at all.
pub const MAILBOX_BYTES_MAX: u64 = 64 << 20;

/// The receiver grants again when this fraction of a window was taken out: often enough that a steady sender never
/// waits, rarely enough that grants are few.
pub const CREDIT_GRANT_FRACTION: u64 = 4;

/// Messages that wait at the sender for credit, per receiving proc. A window of 10,000 calls must run, with room.
pub const SEND_QUEUE_MESSAGES_MAX: usize = 65_536;

/// Bytes of messages that wait at the sender for credit, per receiving proc; one message may pass it when the queue
/// is empty.
pub const SEND_QUEUE_BYTES_MAX: usize = 64 << 20;

/// One packet of the control lane: below what a `SOCK_SEQPACKET` socket takes at once with its usual buffers.
pub const CONTROL_PACKET_BYTES_MAX: usize = 60 << 10;

/// One control message, when it travels in a memory file because no packet holds it. The largest is the start of a
/// proc with the constructor messages of its actors.
pub const CONTROL_MESSAGE_BYTES_MAX: usize = 1 << 30;

/// Constructors that the agent keeps for the later incarnations of one proc.
pub const RECORDED_BYTES_MAX: usize = 1 << 30;

/// After a death was seen the exit status may take this long, then the death is told without. Where the end is
/// certain the status is read at once; this is for the rest.
pub const EXIT_STATUS_WAIT_NS: u64 = 50_000_000;

/// A user's function that is asked what to start has this long before a warning says that a proc is down for it.
pub const ASK_WARNING_NS: u64 = 1_000_000_000;

/// Starts of a template that end before it is ready, before what waits for it fails.
pub const TEMPLATE_STARTS_MAX: u32 = 3;

/// Launches of one incarnation that may get lost with a template, before it fails.
pub const LAUNCHES_LOST_MAX: u32 = 3;

/// Procs that have ended for good and are remembered, so that who asks hears how and its owner may start it again. Each
/// costs what its start needs, some kilobytes.
pub const ENDED_PROCS_MAX: usize = 1_024;

/// Hosts that are gone and are remembered, so that who asks for procs there hears why it gets none.
pub const HOSTS_REMEMBERED_MAX: usize = 256;

/// The least pause before a spare that died is replaced: nobody waits for it, and one that dies at its start must not keep
/// the template busy.
pub const SPARE_PAUSE_NS: u64 = 1_000_000_000;

/// Beginnings of constructors' messages that a mesh's spares are told of, to load what they need: a program has few classes
/// of actors.
pub const SPARE_PLANS_MAX: usize = 64;

/// Deaths that a failure names as its history. A policy that mends more is at work for hours; its last ones tell.
pub const DEATHS_KEPT_MAX: usize = 16;

/// Last bytes of stderr in each death of that history: 16 of them fit into one packet.
pub const EARLIER_STDERR_BYTES_MAX: usize = 1 << 10;

/// Places in a started page: one for each lane of that proc, 64 KiB in all, of which only touched pages are there.
pub const STARTED_SLOTS: u32 = 8_192;

/// Requests in the hands of one template. Each carries ten descriptors, and the kernel bounds those in flight.
pub const TEMPLATE_REQUESTS_MAX: usize = 16;

/// What a peer may send before it has proved itself: a handshake with certificates of an own PKI is a third of it. It bounds
/// what a stranger can make this side hold.
pub const HANDSHAKE_BYTES_MAX: usize = 16 << 10;

/// Certificates of an own PKI that one side shows, so that its handshake stays below [`HANDSHAKE_BYTES_MAX`].
pub const PKI_CHAIN_BYTES_MAX: usize = 12 << 10;

/// Plaintext that a connection between hosts has taken and not written, because the socket is full: four records of TLS, about
/// what a socket takes at once.
pub const SECURE_UNSENT_BYTES_MAX: usize = 64 << 10;

/// A piece of a message between the root and another host: small enough that a beat never waits long behind one.
pub const TRUNK_PIECE_BYTES: usize = 256 << 10;

/// What may wait for the other end of a trunk, aside from what its session keeps. A host that takes nothing is lost after
/// some seconds anyway.
pub const TRUNK_QUEUE_BYTES_MAX: usize = 1 << 30;

/// One of the records that a trunk begins with. The largest holds certificates.
pub const TRUNK_RECORD_BYTES_MAX: usize = 64 << 10;

/// The root's beats over a trunk, from one to the next .
pub const BEAT_NS: u64 = 1_000_000_000;

/// Silence after which a host is lost.
pub const SILENCE_NS: u64 = 10_000_000_000;

/// Beats by which a host knows the root's clock: a minute, in which two crystals drift apart by some milliseconds at most.
pub const CLOCK_SAMPLES_MAX: usize = 60;

/// How far the root's clock has to have moved before procs are told: deadlines need no more.
pub const CLOCK_STEP_NS: u64 = 1_000_000;

/// Frames of one session that may travel together along a tree of hosts. What is larger fills its connection anyway, and inner
/// hosts would hold it for all below them.
pub const POSTED_BYTES_MAX: usize = 32 << 10;

/// The same of answers, which inner hosts hold for all below them at once.
pub const POSTED_ANSWER_BYTES_MAX: usize = 2 << 10;

/// How long what travels along a tree may be without an acknowledgement, before it is sent over the connection of its session:
/// far longer than a tree of thousands of hosts takes, and no longer than what is promised after a cut.
pub const POSTED_WAIT_NS: u64 = 1_000_000_000;

/// When to try again to take back what travels along a tree, while a frame is half written.
pub const POSTED_RETRY_NS: u64 = 50_000_000;

/// Hosts that one host passes a carrier on to. Eight in parallel are as fast as one where links are equal, and four steps reach
/// four thousand hosts.
pub const CARRIER_HOSTS_MAX: usize = 8;

/// Carriers of which a host knows where they came from, for the answers: what is answered later goes straight to the root.
pub const CARRIERS_REMEMBERED_MAX: usize = 256;

/// The frames of one carrier, or answers that go on together; what is more goes in several.
pub const CARRIER_FRAMES_BYTES_MAX: usize = 64 << 20;

/// One message between two hosts of a tree: the frames, their receivers, and where these are.
pub const CARRIER_BYTES_MAX: usize = 256 << 20;
