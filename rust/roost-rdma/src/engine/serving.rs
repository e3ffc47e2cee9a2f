//! The owner's side: leases, chunks, and how a buffer is taken back.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use rustix::process::Pid;

use super::driver::Driver;
use super::link::{Link, Serving};
use super::shared::lock;
use super::summing::SumWanted;
use super::timers::Timer;
use super::{Backend, Completion, Done};
use crate::handle::{Key, Peer};
use crate::limits::{LANE_REQUESTS_MAX, REVOKE_WAIT};
use crate::link::{Address, Broken, Message, Piece, Reason, Status, Trailer};
use crate::local::{ptrace, vm};
use crate::region::{Memory, Refusal, Region, Regions};
use crate::stream::{Cut, Fault, Outgoing, Sink, Span};

impl Driver {
    /// A message from who asks.
    pub(super) fn asked(&mut self, id: u64, lane: usize, message: Message) -> Result<(), Cut> {
        match message {
            Message::Hello(hello) => self.greet(id, &hello),
            Message::Open {
                request,
                region,
                key,
                owner,
                wants_memory,
            } => {
                self.open(id, request, region, &key, owner, wants_memory);
                Ok(())
            }
            Message::Revoked { region } => {
                if let Some(serving) = self.links.get_mut(&id).and_then(Link::serving) {
                    serving.leased.remove(&region);
                }
                self.is_recounted = true;
                if lock(&self.shared.regions).release(region, id) {
                    self.give_back(region);
                }
                Ok(())
            }
            Message::Offer { offer } => self.offered(id, &offer),
            Message::Look { request, regions } => self.look(id, request, regions),
            Message::Sum {
                request,
                slot,
                goes_on,
                pieces,
                ends,
            } => self.sum_for(
                id,
                slot,
                goes_on,
                SumWanted {
                    request,
                    pieces,
                    ends,
                },
            ),
            Message::Read { request, pieces } => self.read(id, lane, request, &pieces),
            Message::Write { request: _, pieces } => self.write(id, lane, &pieces),
            _ => Err(Broken("an answer to who serves").into()),
        }
    }

    fn open(&mut self, id: u64, request: u64, region: u64, key: &Key, owner: Peer, wants_memory: bool) {
        let own = self.shared.own.peer;
        let is_forced = matches!(self.shared.options.forced, Some(Backend::Tcp | Backend::Ibverbs));
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let is_near = link.is_unix() && !is_forced;
        let Some(serving) = link.serving() else {
            return;
        };
        let has_nics = serving.path.is_some();
        let leased = if owner == own {
            lock(&self.shared.regions)
                .lease(region, key, id)
                .map_err(|refusal| match refusal {
                    Refusal::Gone => (Reason::Gone, String::new()),
                    Refusal::Forged => (Reason::Forged, String::new()),
                })
                .and_then(|region| address_of(region, is_near, has_nics, wants_memory, serving.pid))
        } else {
            Err((Reason::OtherLife, String::new()))
        };
        let leased = leased.and_then(|(bytes, address, descriptors)| {
            let keys = self.keys_of(id, region)?;
            Ok((bytes, address, keys, descriptors))
        });
        self.touched.insert(id);
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let Some(serving) = link.serving() else {
            return;
        };
        match leased {
            Ok((bytes, address, keys, descriptors)) => {
                serving.leased.insert(region);
                self.is_recounted = true;
                link.say(
                    &Message::Opened {
                        request,
                        bytes,
                        address,
                        keys,
                    },
                    descriptors,
                );
            }
            Err((reason, text)) => {
                if !serving.leased.contains(&region) {
                    lock(&self.shared.regions).release(region, id);
                }
                link.say(
                    &Message::Refused {
                        request,
                        reason,
                        text,
                    },
                    Vec::new(),
                );
            }
        }
    }

    fn read(&mut self, id: u64, lane: usize, request: u64, pieces: &[Piece]) -> Result<(), Cut> {
        let link = self.links.get_mut(&id).ok_or(Cut::Closed)?;
        let serving = link.serving().ok_or(Broken("a question to who asks"))?;
        let spans = spans_of(&lock(&self.shared.regions), serving, pieces);
        let conduit = &mut link.lanes[lane];
        if conduit.chunks_waiting() >= LANE_REQUESTS_MAX {
            return Err(Broken("more requests than it may make").into());
        }
        conduit.push(match spans {
            Ok(spans) => {
                let bytes = pieces.iter().map(|piece| piece.bytes).sum();
                Outgoing::chunk(&Message::Data { request, bytes }, request, spans)
            }
            Err(Fault { status, span }) => Outgoing::message(
                &Message::Ended {
                    request,
                    status,
                    piece: span,
                },
                Vec::new(),
            ),
        });
        Ok(())
    }

    fn write(&mut self, id: u64, lane: usize, pieces: &[Piece]) -> Result<(), Cut> {
        let link = self.links.get_mut(&id).ok_or(Cut::Closed)?;
        let serving = link.serving().ok_or(Broken("a question to who asks"))?;
        let spans = spans_of(&lock(&self.shared.regions), serving, pieces);
        if link.lanes[lane].is_cut() {
            return Err(Cut::Closed);
        }
        let sink = match spans {
            // SAFETY: a region's memory is kept until it is given back, before which all its sinks are revoked.
            Ok(spans) => unsafe { Sink::new(spans) },
            Err(fault) => Sink::nowhere(pieces.iter().map(|piece| piece.bytes).sum(), fault),
        };
        link.lanes[lane].receive_into(sink);
        Ok(())
    }

    /// The bytes of a write have come.
    pub(super) fn chunk_written(
        &mut self,
        id: u64,
        lane: usize,
        request: u64,
        sink: &Sink,
        trailer: Trailer,
    ) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let (status, piece) = match (trailer.status, sink.fault()) {
            (Status::Good, None) => (Status::Good, 0),
            (_, Some(fault)) => (fault.status, fault.span),
            // Where the bytes come from is gone.
            (_, None) => (Status::GivenUp, trailer.piece),
        };
        link.lanes[lane].push(Outgoing::message(
            &Message::Ended {
                request,
                status,
                piece,
            },
            Vec::new(),
        ));
    }

    /// A link that served is no more, and neither are its leases.
    pub(super) fn served(&mut self, id: u64, serving: &Serving) {
        self.shared
            .lookers
            .fetch_sub(serving.lookers.len(), Ordering::Relaxed);
        let free = lock(&self.shared.regions).lost(id);
        for region in free {
            self.give_back(region);
        }
    }

    pub(super) fn drop_region(&mut self, region: u64, token: u64) {
        let holders = lock(&self.shared.regions).revoke(region, token);
        let Ok(holders) = holders else {
            // It was dropped before, or is being dropped under another token.
            let done = Done {
                version: None,
                bytes: 0,
                checksum: None,
            };
            return self.done.push(Completion {
                token,
                result: Ok(done),
                keep: Box::new(()),
            });
        };
        for id in &holders {
            if let Some(link) = self.links.get_mut(id) {
                for conduit in &mut link.lanes {
                    conduit.revoke(region);
                }
                link.say(&Message::Revoke { region }, Vec::new());
                self.touched.insert(*id);
            }
        }
        if self.shared.lookers.load(Ordering::Relaxed) > 0 {
            self.look_again();
        }
        if holders.is_empty() {
            self.give_back(region);
        } else {
            self.timers.set(self.now + REVOKE_WAIT, Timer::Revoke { region });
        }
    }

    /// Nobody reaches the region any more, or may not: its memory goes back.
    pub(super) fn give_back(&mut self, region: u64) {
        let removed = lock(&self.shared.regions).remove(region);
        let Some(removed) = removed else {
            return;
        };
        for link in self.links.values_mut() {
            if let Some(serving) = link.serving() {
                serving.leased.remove(&region);
            }
        }
        // Before its memory: from here on its keys are worth nothing.
        self.nics.forget(region);
        self.is_recounted = true;
        if let Some(token) = removed.token {
            let done = Done {
                version: None,
                bytes: 0,
                checksum: None,
            };
            self.done.push(Completion {
                token,
                result: Ok(done),
                keep: removed.keep,
            });
        }
    }
}

/// How the region can be reached by who asks over this link.
fn address_of(
    region: &Region<u64>,
    is_near: bool,
    has_nics: bool,
    wants_memory: bool,
    pid: u32,
) -> Result<(u64, Address, Vec<OwnedFd>), (Reason, String)> {
    let bytes = region.memory.bytes();
    if matches!(region.memory, Memory::Device { .. }) && !has_nics {
        let text = "memory of a device is reached by ibverbs alone".to_owned();
        return Err((Reason::Hindered, text));
    }
    if !is_near || has_nics {
        return Ok((bytes, Address::Asked, Vec::new()));
    }
    let describe = || -> std::io::Result<(Address, Vec<OwnedFd>)> {
        let mut descriptors = vec![vm::own_pidfd()?, region.slot.file().try_clone_to_owned()?];
        let stamp = region.slot.index();
        let address = match &region.memory {
            Memory::Shared { segment, offset, .. } => {
                descriptors.push(segment.file().try_clone_to_owned()?);
                Address::Segment {
                    offset: *offset,
                    bytes: segment.bytes() as u64,
                    stamp,
                }
            }
            memory => {
                if let Some(reader) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                    ptrace::admit(reader);
                }
                let own = if wants_memory {
                    ptrace::own_memory().ok()
                } else {
                    None
                };
                let has_memory = own.is_some();
                descriptors.extend(own);
                Address::Process {
                    base: memory.address() as u64,
                    stamp,
                    has_memory,
                }
            }
        };
        Ok((address, descriptors))
    };
    match describe() {
        Ok((address, descriptors)) => Ok((bytes, address, descriptors)),
        Err(error) => Err((
            Reason::Hindered,
            format!("the owner cannot hand its memory over: {error}"),
        )),
    }
}

/// Where the pieces are in this process, for who has leases of them.
pub(super) fn spans_of(
    regions: &Regions<u64>,
    serving: &Serving,
    pieces: &[Piece],
) -> Result<Vec<Span>, Fault> {
    let span_of = |(at, piece): (usize, &Piece)| {
        let fault = |status| Fault {
            status,
            span: u32::try_from(at).unwrap_or(u32::MAX),
        };
        let region = regions
            .own(piece.region)
            .filter(|_| serving.leased.contains(&piece.region));
        let region = region
            .filter(|region| !region.is_dropping())
            .ok_or(fault(Status::Gone))?;
        if matches!(region.memory, Memory::Device { .. }) {
            return Err(fault(Status::Device));
        }
        let address = region
            .memory
            .range(piece.offset, piece.bytes)
            .ok_or(fault(Status::OutOfBounds))?;
        Ok(Span {
            address,
            bytes: piece.bytes,
            region: piece.region,
        })
    };
    pieces.iter().enumerate().map(span_of).collect()
}
