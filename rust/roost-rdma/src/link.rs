//! What two engines say to each other.
//!
//! A link belongs to one asker and one owner. Messages go over its first connection; chunks, each a message with bytes
//! behind it, over the others, or over the first when it is the only one. Answers come over the connection of their request.

mod bytes;
mod codec;
mod message;
#[cfg(test)]
mod tests;

pub(crate) use self::message::{
    Address, Broken, HEAD_BYTES, Head, Hello, Message, Piece, Reason, Stamp, Status, TRAILER_BYTES, Trailer,
};
