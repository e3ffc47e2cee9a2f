//! Chunks of a share over a link: asked for as long as there is room, and taken in.

use std::os::fd::OwnedFd;

use super::driver::Driver;
use super::link::{Link, Request};
use super::operation::Stage;
use crate::error::Error;
use crate::link::{Broken, Message, Status, Trailer};
use crate::plan::Direction;
use crate::stream::{Cut, Fault, Outgoing, Sink};

impl Driver {
    /// Asks for chunks, of each share in turn, as long as there is room.
    pub(super) fn pump(&mut self, id: u64) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let Link {
            side: super::link::Side::Asks(asking),
            lanes,
            ..
        } = link
        else {
            return;
        };
        while let Some(lane) = asking.free_lane() {
            let Some(share) = asking.ready.pop_front() else {
                return;
            };
            let (token, number) = share;
            let Some(operation) = self.operations.get_mut(&token).filter(|of| of.failure.is_none()) else {
                continue;
            };
            let of = &mut operation.shares[number];
            if of.link != Some(id) || of.stage != Stage::Working {
                continue;
            }
            let Some(chunk) = of.next_chunk() else {
                continue;
            };
            of.outstanding += 1;
            if !of.is_all_asked() {
                asking.ready.push_back(share);
            }
            operation.holds += usize::from(chunk.direction == Direction::Write);
            self.issued += 1;
            let request = self.issued;
            let pieces = chunk.remote.clone();
            lanes[lane].push(match chunk.direction {
                Direction::Read => Outgoing::message(&Message::Read { request, pieces }, Vec::new()),
                Direction::Write => {
                    Outgoing::chunk(&Message::Write { request, pieces }, request, chunk.local.clone())
                }
            });
            asking.flights[lane].begin(chunk.bytes);
            asking.requests.insert(
                request,
                Request::Chunk {
                    share,
                    lane,
                    chunk,
                    is_given_up: false,
                },
            );
        }
    }

    /// A message to who asks.
    pub(super) fn answered(
        &mut self,
        id: u64,
        lane: usize,
        message: Message,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Cut> {
        match message {
            Message::Hello(hello) => self.greet(id, &hello),
            Message::Opened {
                request,
                bytes,
                address,
                keys,
            } => self.opened(id, request, bytes, address, &keys, descriptors),
            Message::Refused {
                request,
                reason,
                text,
            } => self.refused(id, request, reason, text),
            Message::Revoke { region } => {
                self.revoked(id, region);
                Ok(())
            }
            Message::Answer { answer, failure } => {
                self.offer_answered(id, &answer, failure);
                Ok(())
            }
            Message::Sums { request, sums } => self.sums_came(id, request, &sums),
            Message::Looked { request, stamps } => self.looked(id, request, &stamps),
            Message::Data { request, bytes } => self.data_begins(id, lane, request, bytes),
            Message::Ended {
                request,
                status,
                piece,
            } => self.request_ended(id, request, status, piece),
            _ => Err(Broken("a question to who asks").into()),
        }
    }

    /// Bytes come for a request: into its memory, or nowhere when they are not wanted any more.
    fn data_begins(&mut self, id: u64, lane: usize, request: u64, bytes: u64) -> Result<(), Cut> {
        let link = self.links.get_mut(&id).ok_or(Cut::Closed)?;
        let asking = link.asking().ok_or(Broken("data for who serves"))?;
        let Some(Request::Chunk {
            chunk,
            is_given_up,
            lane: of_lane,
            ..
        }) = asking.requests.get(&request)
        else {
            return Err(Broken("data that nobody asked for").into());
        };
        if chunk.direction != Direction::Read || chunk.bytes != bytes || *of_lane != lane {
            return Err(Broken("other data than was asked for").into());
        }
        let sink = if *is_given_up {
            Sink::nowhere(
                bytes,
                Fault {
                    status: Status::GivenUp,
                    span: 0,
                },
            )
        } else {
            // SAFETY: the transfer's memory is kept until it ends, before which it gives its chunks up.
            unsafe { Sink::new(chunk.local.clone()) }
        };
        link.lanes[lane].receive_into(sink);
        Ok(())
    }

    /// A chunk's bytes are there, as far as they were to be had.
    pub(super) fn chunk_came(
        &mut self,
        id: u64,
        request: u64,
        sink: &Sink,
        trailer: Trailer,
    ) -> Result<(), Cut> {
        if trailer.status != Status::Good {
            return self.request_ended(id, request, trailer.status, trailer.piece);
        }
        match sink.fault() {
            None => self.request_ended(id, request, Status::Good, 0),
            Some(fault) => {
                let error = |part| Error::Failed {
                    part,
                    reason: "the memory that it is read into is gone".to_owned(),
                };
                self.end_request(id, request, fault.span, Some(&error))
            }
        }
    }

    fn request_ended(&mut self, id: u64, request: u64, status: Status, piece: u32) -> Result<(), Cut> {
        let asking = self
            .links
            .get_mut(&id)
            .and_then(Link::asking)
            .ok_or(Broken("an answer to who serves"))?;
        if let Some(Request::Look {
            share: (token, number),
            first,
        }) = asking.requests.get(&request)
        {
            let at = first + piece as usize;
            let (token, number) = (*token, *number);
            asking.requests.remove(&request);
            if let Some(operation) = self.operations.get(&token) {
                let of = &operation.shares[number];
                let part = of.looked_at.get(at).and_then(|region| of.part_of(*region));
                let error = operation.about(number, part, Error::Gone("its owner has dropped it".to_owned()));
                self.fail(token, error);
            }
            return Ok(());
        }
        if let Some(Request::Sum { .. }) = asking.requests.get(&request) {
            self.not_summed(id, request, status, piece);
            return Ok(());
        }
        let error = |part| match status {
            Status::Good | Status::Gone => Error::Gone("its owner has dropped it".to_owned()),
            Status::Unmapped => Error::Gone("its memory is not there any more".to_owned()),
            Status::OutOfBounds => Error::Refused("the handle has another size than the buffer".to_owned()),
            Status::Device => Error::Unavailable("memory of a device is reached by ibverbs alone".to_owned()),
            Status::GivenUp => Error::Failed {
                part,
                reason: "the memory that it is written from is gone".to_owned(),
            },
        };
        let error: Option<&dyn Fn(usize) -> Error> = if status == Status::Good {
            None
        } else {
            Some(&error)
        };
        self.end_request(id, request, piece, error)
    }

    /// A chunk is done, well or not.
    fn end_request(
        &mut self,
        id: u64,
        request: u64,
        piece: u32,
        error: Option<&dyn Fn(usize) -> Error>,
    ) -> Result<(), Cut> {
        let link = self.links.get_mut(&id).ok_or(Cut::Closed)?;
        let peer = link.peer;
        let asking = link.asking().ok_or(Broken("an answer to who serves"))?;
        let Some(Request::Chunk {
            share,
            lane,
            chunk,
            is_given_up,
        }) = asking.requests.remove(&request)
        else {
            return Err(Broken("an answer without a question").into());
        };
        asking.flights[lane].end(chunk.bytes);
        self.touched.insert(id);
        if let Some(entry) = self.peers.get_mut(&peer) {
            entry.is_well();
        }
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token) else {
            return Ok(());
        };
        operation.holds -= usize::from(chunk.direction == Direction::Write);
        if is_given_up {
            self.end_if_idle(token);
            return Ok(());
        }
        let of = &mut operation.shares[number];
        of.outstanding -= 1;
        if let Some(error) = error {
            let part = chunk.parts.get(piece as usize).copied().unwrap_or(0);
            let error = operation.about(number, Some(part), error(part));
            self.fail(token, error);
        } else if of.outstanding == 0 && of.is_all_asked() && of.stage == Stage::Working {
            self.ready(share);
        }
        Ok(())
    }
}
