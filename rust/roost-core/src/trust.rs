//! Who may speak with whom between hosts: proofs of identity, and the TLS around every connection.
//!
//! Two kinds of connection, which cannot be taken for each other (their ALPN names, labels and keys differ):
//!
//! - **join**, a [`Door`]: the control connection from the root to a host, before the two share anything but a
//!   [`JoinKey`], files of the user's own PKI, or a machine;
//! - **lane**, a [`Trust`]: everything after it, between hosts of one job, by certificates of the job's own
//!   [`Authority`], which the root makes at its start and hands down as [`Credentials`].
//!
//! Each begins with 64 bytes in clear (the preamble, a `Hello`), which the caller has read or written before; they are
//! bound in, so a preamble that was changed on its way is refused. Then a [`Handshake`] moves bytes until both sides
//! have proved themselves, and leaves a [`Secure`] for what follows. `docs/wire.md` has every byte.
//!
//! Sockets are handed in as [`std::io::Read`] and [`std::io::Write`] that do not block. There is a source of random
//! numbers here, and, only for certificates of an own PKI, the machine's date.
//!
//! `error` says why a peer was refused; `key` is the key to join by; `authority` issues certificates; `tls` sets TLS up;
//! `door` and `lane` begin handshakes; `proof` is what both sides prove; `channel` carries it, in TLS or in clear; `handshake` and `secure` move the bytes.

mod authority;
mod channel;
mod door;
mod error;
mod handshake;
mod key;
mod lane;
mod proof;
mod secure;
#[cfg(test)]
mod tests;
mod tls;

pub use self::authority::{Authority, Credentials};
pub use self::door::{Door, DoorConfig, Pki};
pub use self::error::TrustError;
pub use self::handshake::Handshake;
pub use self::key::JoinKey;
pub use self::lane::Trust;
pub use self::secure::Secure;

/// Bytes that begin each connection between hosts, in clear.
pub const PREAMBLE_BYTES: usize = crate::wire::Hello::BYTES;
