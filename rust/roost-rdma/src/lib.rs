//! One-sided memory: what one process reads from, or writes into, the memory of another, without that one's Python.

pub mod checksum;
mod engine;
pub mod error;
pub mod gpu;
mod handle;
mod lane;
mod limits;
mod link;
pub mod local;
pub mod plan;
pub mod region;
pub mod stamp;
mod stream;
pub mod verbs;

pub use self::engine::{
    Backend, Completion, Counts, Done, Engine, Notice, Options, Own, Role, Switch, Transfer,
};
pub use self::error::Error;
pub use self::handle::{Handle, Key, NotAHandle, Peer};
pub use self::lane::{Lane, Plain};
pub use self::local::Segment;
pub use self::plan::{Direction, Misuse, Part, Run, strided};
pub use self::region::{Keep, Memory};
