//! What each fuzz target does with its bytes. `rust/roost-core/tests/corpus.rs` includes this file as well, so that a
//! plain `cargo test` replays the corpus.

mod control;
mod frame;
mod hello;
mod session;
mod stranger;

pub use control::control;
pub use frame::frame;
pub use hello::hello;
pub use session::session;
pub use stranger::stranger;
