//! What is behind a lease: how the owner's memory can be reached from here.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::link::{Asking, Held, Route};
use crate::link::{Address, Broken};
use crate::local::ptrace::{self, NoWay};
use crate::local::{Mappings, Place, Process};
use crate::stamp::View;
use crate::stream::Cut;

/// What came with a lease.
pub(super) enum Found {
    Held(Held),
    Forbidden(String),
    Lost,
}

impl Held {
    pub(super) fn out_of_reach(bytes: u64) -> Self {
        Self {
            bytes,
            place: None,
            stamp: None,
            remote: None,
            users: 0,
            is_revoked: false,
        }
    }
}

/// What an answer gives: the place that can be reached from here, and the stamps.
pub(super) fn hold(
    asking: &mut Asking,
    mappings: &Mappings,
    is_near: bool,
    bytes: u64,
    address: Address,
    descriptors: Vec<OwnedFd>,
) -> Result<Found, Cut> {
    let mut descriptors = VecDeque::from(descriptors);
    if !is_near || asking.route != Route::Local || address == Address::Asked {
        return Ok(Found::Held(Held::out_of_reach(bytes)));
    }
    let mut next = || {
        descriptors
            .pop_front()
            .ok_or(Broken("an answer without its descriptors"))
    };
    let (pidfd, table) = (next()?, next()?);
    let stamp_index = match address {
        Address::Process { stamp, .. } | Address::Segment { stamp, .. } => stamp,
        Address::Asked => return Err(Broken("nowhere").into()),
    };
    let view = view_of(asking, &table)?;
    let place = match address {
        Address::Process { base, has_memory, .. } => {
            let memory = if has_memory { Some(next()?) } else { None };
            match way_to(asking, pidfd, base, memory)? {
                Ok(place) => place,
                Err(found) => return Ok(found),
            }
        }
        Address::Segment {
            offset,
            bytes: segment_bytes,
            ..
        } => {
            let owner = match &asking.process {
                Some(process) => Arc::clone(process),
                None => match Process::of(pidfd) {
                    Ok(process) => Arc::new(process),
                    Err(_) => return Ok(Found::Lost),
                },
            };
            asking.process = Some(Arc::clone(&owner));
            let mapped = mappings.map(next()?.as_fd(), segment_bytes)?;
            Place::Shared {
                owner: Some(owner),
                mapped,
                base: offset,
            }
        }
        Address::Asked => return Err(Broken("nowhere").into()),
    };
    let stamp = Some((view, stamp_index));
    Ok(Found::Held(Held {
        bytes,
        place: Some(place),
        stamp,
        remote: None,
        users: 0,
        is_revoked: false,
    }))
}

/// The way to the owner's memory is looked for once.
fn way_to(
    asking: &mut Asking,
    pidfd: OwnedFd,
    base: u64,
    memory: Option<OwnedFd>,
) -> Result<Result<Place, Found>, Cut> {
    if let Some(way) = &asking.way {
        return Ok(Ok(Place::Process {
            way: Arc::clone(way),
            base,
        }));
    }
    let another = pidfd.try_clone()?;
    let (Ok(process), Ok(kept)) = (Process::of(pidfd), Process::of(another)) else {
        return Ok(Err(Found::Lost));
    };
    asking.process.get_or_insert_with(|| Arc::new(kept));
    let address = usize::try_from(base).map_err(|_| Broken("an address that is none"))?;
    Ok(match ptrace::choose(process, address, memory) {
        Ok(way) => {
            let way = Arc::new(way);
            asking.way = Some(Arc::clone(&way));
            Ok(Place::Process { way, base })
        }
        Err(NoWay::Lost) => Err(Found::Lost),
        Err(NoWay::Forbidden { message, .. }) => Err(Found::Forbidden(message)),
    })
}

/// The owner's stamps, mapped once for each of its files.
fn view_of(asking: &mut Asking, table: &OwnedFd) -> Result<Arc<View>, Cut> {
    let stat = rustix::fs::fstat(table).map_err(std::io::Error::from)?;
    let number = (stat.st_dev, stat.st_ino);
    if let Some(view) = asking.views.get(&number) {
        return Ok(Arc::clone(view));
    }
    let view = Arc::new(View::map(table.as_fd())?);
    asking.views.insert(number, Arc::clone(&view));
    Ok(view)
}
