//! Roots that have proved themselves: they are told who is here, and say what they want.

use std::io;
use std::net::IpAddr;

use roost_core::trunk::{Claim, Verdict, write_record};
use rustix::event::epoll::{self, EventData, EventFlags};

use super::{Call, HANDSHAKE_NS, Station};
use crate::control::net::records::Records;
use crate::control::net::stream::Stream;

/// The root of a job wants this host to work for it.
#[derive(Debug)]
pub(crate) struct Claimed {
    pub(crate) claim: Claim,
    records: Records,
    pub(crate) from: String,
}

impl Claimed {
    /// Say what this host makes of it, and go on with the connection and the bytes behind the claim.
    pub(in crate::control::net) fn answer(mut self, verdict: &Verdict) -> io::Result<(Stream, Vec<u8>)> {
        let bytes = write_record(verdict).map_err(io::Error::other)?;
        self.records.write(&bytes)?;
        let (stream, _, _, rest) = self.records.into_parts();
        Ok((stream, rest))
    }

    /// Say that it will not be.
    pub(crate) fn refuse(self, verdict: &Verdict) {
        // Who has gone away meanwhile does not want to know.
        let _ = self.answer(verdict);
    }
}

#[derive(Debug)]
pub(super) struct Claiming {
    records: Records,
    from: Option<IpAddr>,
    pub(super) until_ns: u64,
}

impl Station {
    /// A root has proved itself: tell it who is here.
    pub(super) fn greet(&mut self, now_ns: u64, from: Option<IpAddr>, stream: Stream) -> Option<Call> {
        let number = self.next;
        self.next += 1;
        epoll::add(
            &self.epoll,
            &stream.socket,
            EventData::new_u64(number),
            EventFlags::IN,
        )
        .ok()?;
        let mut records = Records::new(stream, String::new());
        records.write(&write_record(&self.greeting).ok()?).ok()?;
        self.claiming.insert(
            number,
            Claiming {
                records,
                from,
                until_ns: now_ns + HANDSHAKE_NS,
            },
        );
        // It may have said what it wants already.
        self.claim(number)
    }

    pub(super) fn claim(&mut self, number: u64) -> Option<Call> {
        let mut one = self.claiming.remove(&number)?;
        let ended = one.records.read().err();
        match one.records.record::<Claim>() {
            Ok(Some(claim)) => {
                let _ = epoll::delete(&self.epoll, &one.records.stream.socket);
                let from = one
                    .from
                    .map_or_else(|| "a process of this host".to_owned(), |from| from.to_string());
                Some(Call::Claim(Box::new(Claimed {
                    claim,
                    records: one.records,
                    from,
                })))
            }
            Ok(None) if ended.is_none() => {
                self.claiming.insert(number, one);
                None
            }
            Ok(None) => None,
            Err(error) => Some(Call::Failed(format!("a root's claim was refused: {error}"))),
        }
    }
}
