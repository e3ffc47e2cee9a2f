//! Who is who. Each name is a type of its own, prints, and parses back.
//!
//! Random numbers are drawn outside: this crate has no source of them.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

/// A text that is not the id that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// The text does not have the form of this id.
    #[error("{text:?} is not the id of a {what}: expected {form}")]
    Form {
        /// The kind of id that was asked for.
        what: &'static str,
        /// The text that was given, cut short.
        text: String,
        /// What such an id looks like.
        form: &'static str,
    },
}

impl IdError {
    fn form(what: &'static str, text: &str, form: &'static str) -> Self {
        let text = text.chars().take(64).collect();
        Self::Form { what, text, form }
    }
}

/// One job: everything that one root process owns. Prints as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub [u8; 16]);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobId({self})")
    }
}

impl FromStr for JobId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let error = || IdError::form("job", text, "32 lower-case hexadecimal digits");
        if text.len() != 32 || !is_lower_hex(text) {
            return Err(error());
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| error())?;
        Ok(Self(number.to_be_bytes()))
    }
}

macro_rules! random_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $prefix:literal, $form:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(NonZeroU64);

        impl $name {
            /// The id with this number; none for zero, which means "nobody" on the wire.
            #[inline]
            pub const fn new(number: u64) -> Option<Self> {
                match NonZeroU64::new(number) {
                    Some(number) => Some(Self(number)),
                    None => None,
                }
            }

            /// Its number, never zero.
            #[inline]
            pub const fn get(self) -> u64 {
                self.0.get()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{:016x}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                text.strip_prefix($prefix)
                    .filter(|digits| digits.len() == 16 && is_lower_hex(digits))
                    .and_then(|digits| u64::from_str_radix(digits, 16).ok())
                    .and_then(Self::new)
                    .ok_or_else(|| IdError::form($what, text, $form))
            }
        }
    };
}

random_id! {
    /// One proc, over all its incarnations. Drawn at random, so that no address is needed to tell two apart.
    ProcId, "proc", "proc-", "proc- and 16 lower-case hexadecimal digits, not all zero"
}

random_id! {
    /// One life of a host's agent. Drawn at random by it, so that no address is needed to tell two hosts apart, and one
    /// that was given up does not come back.
    HostId, "host", "host-", "host- and 16 lower-case hexadecimal digits, not all zero"
}

random_id! {
    /// One mesh, of procs or of actors. Drawn at random by the proc that makes it.
    MeshId, "mesh", "mesh-", "mesh- and 16 lower-case hexadecimal digits, not all zero"
}

/// Which life of a proc or actor: 0 at first, one more after each restart. Prints as `#0`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Incarnation(pub u32);

impl Incarnation {
    /// The life after this one; none when the numbers are used up.
    pub const fn next(self) -> Option<Self> {
        match self.0.checked_add(1) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incarnation({self})")
    }
}

impl FromStr for Incarnation {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        text.strip_prefix('#')
            .and_then(parse_decimal)
            .map(Self)
            .ok_or_else(|| IdError::form("incarnation", text, "# and a decimal number"))
    }
}

/// One actor: the proc it lives in, its mesh, and its place among the actors that this mesh has in this proc.
/// Prints as `proc-…/mesh-…/slot`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ActorId {
    /// The proc it lives in.
    pub proc: ProcId,
    /// The actor mesh that it belongs to.
    pub mesh: MeshId,
    /// Its place among the actors that this mesh has in this proc, from 0.
    pub slot: u32,
}

impl fmt::Display for ActorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.proc, self.mesh, self.slot)
    }
}

impl fmt::Debug for ActorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ActorId({self})")
    }
}

impl FromStr for ActorId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let error = || IdError::form("actor", text, "proc-…/mesh-…/slot");
        let mut fields = text.split('/');
        let (Some(proc), Some(mesh), Some(slot), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(error());
        };
        Ok(Self {
            proc: proc.parse()?,
            mesh: mesh.parse()?,
            slot: parse_decimal(slot).ok_or_else(error)?,
        })
    }
}

fn is_lower_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// One number has one text: no sign, no leading zeros.
fn parse_decimal(text: &str) -> Option<u32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_what_the_docs_say() {
        let proc = ProcId::new(0xab).unwrap();
        let mesh = MeshId::new(u64::MAX).unwrap();
        assert_eq!(proc.to_string(), "proc-00000000000000ab");
        assert_eq!(
            ActorId { proc, mesh, slot: 7 }.to_string(),
            "proc-00000000000000ab/mesh-ffffffffffffffff/7"
        );
        assert_eq!(Incarnation(3).to_string(), "#3");
        assert_eq!(JobId([0x1f; 16]).to_string(), "1f".repeat(16));
    }

    #[test]
    fn one_id_has_one_text() {
        for text in [
            "proc-0000000000000000",
            "proc-00000000000000AB",
            "proc-ab",
            "mesh-00000000000000ab",
            "",
            "proc-",
        ] {
            assert!(text.parse::<ProcId>().is_err(), "{text}");
        }
        for text in ["#", "#01", "#+1", "1", "#4294967296"] {
            assert!(text.parse::<Incarnation>().is_err(), "{text}");
        }
        assert!(
            "proc-00000000000000ab/mesh-ffffffffffffffff/7/8"
                .parse::<ActorId>()
                .is_err()
        );
        assert!("+f".repeat(16).parse::<JobId>().is_err());
    }
}
