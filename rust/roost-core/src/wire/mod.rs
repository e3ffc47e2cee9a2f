//! The bytes between two procs. `docs/wire.md` has the tables; `tests/golden.rs` holds the bytes.
//!
//! Decoders borrow from the slice they are given, allocate nothing, and return an error for any bytes that are not
//! right: they never panic. Encoders check every bound before they write the first byte.
//!
//! | module | what it is |
//! |---|---|
//! | `answer` | what the agent of another host answers to them |
//! | `hello` | the first bytes: versions and identities |
//! | `frame` | what every frame begins with, and its kinds |
//! | `message`, `runs`, `chain` | a message: to which actors, on whose behalf |
//! | `reply` | replies, cancels, credit, ports, goodbyes |
//! | `parts` | the values that they carry |
//! | `bulk` | parts that travel ahead of their frame, in pieces; frames of control connections |
//! | `bytes`, `error` | numbers in bytes; what is wrong with bytes |

mod answer;
pub mod bulk;
mod bytes;
pub mod chain;
mod error;
pub mod frame;
pub mod hello;
pub mod message;
pub mod parts;
pub mod reply;
pub mod runs;

pub use answer::{Answer, AnswerError, Refusal};
pub use bulk::{Bulk, Control};
pub use chain::{Chain, ChainBuffer, ChainLink};
pub use error::{EncodeError, ProtocolError};
pub use frame::{Content, Frame, FrameHead, FrameHeader, Kind, Tail, frame_length_hint};
pub use hello::{Hello, HelloError, Resume, Stripe, Version};
pub use message::MessageHeader;
pub use parts::{BulkPart, Part, Parts, SegmentPart};
pub use reply::{Cancel, Credit, CreditTarget, Goodbye, PortClose, PortItem, ReplyHeader, ReplyStatus};
pub use runs::{OneRun, Run, Runs, RunsBuffer};
