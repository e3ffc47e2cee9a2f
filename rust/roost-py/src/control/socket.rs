//! Packets over a socket pair, with descriptors beside them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Descriptors that one packet may carry.
pub(super) const DESCRIPTORS_MAX: usize = 16;

/// Why a packet cannot be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blocked {
    /// The socket is full: it becomes writable again.
    Room,
    /// Too many descriptors of this user are on their way. Nothing tells when there are fewer: try again later.
    InFlight,
}

/// When to try again.
pub(super) const IN_FLIGHT_RETRY_NS: u64 = 10_000_000;

impl Blocked {
    /// The obstacle that an error stands for; the error itself when it is another.
    pub(super) fn from_error(error: Errno) -> Result<Self, Errno> {
        match error {
            Errno::AGAIN => Ok(Self::Room),
            Errno::TOOMANYREFS => Ok(Self::InFlight),
            other => Err(other),
        }
    }
}

/// What to watch a socket for, when this is in the way.
pub(super) fn room(blocked: Option<Blocked>) -> EventFlags {
    if blocked == Some(Blocked::Room) {
        EventFlags::OUT
    } else {
        EventFlags::empty()
    }
}

/// Two ends of a socket that keeps packets apart; neither blocks.
pub(super) fn packet_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    pair(SocketType::SEQPACKET)
}

/// Two ends of a stream; neither blocks.
pub(super) fn stream_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    pair(SocketType::STREAM)
}

fn pair(kind: SocketType) -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(
        AddressFamily::UNIX,
        kind,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// Send one packet.
pub(super) fn send(socket: impl AsFd, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let pushed = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(pushed, "a packet carries at most {DESCRIPTORS_MAX} descriptors");
    }
    loop {
        match sendmsg(
            &socket,
            &[IoSlice::new(packet)],
            &mut control,
            SendFlags::NOSIGNAL,
        ) {
            Err(Errno::INTR) => {}
            result => return result.map(drop),
        }
    }
}

/// One packet that arrived in the caller's buffer.
#[derive(Debug)]
pub(super) struct Received {
    /// Its length; zero is the end of the stream.
    pub(super) length: usize,
    /// What came with it. Where the table of this process is full, descriptors are missing that were sent.
    pub(super) descriptors: Vec<OwnedFd>,
}

/// Receive one packet.
pub(super) fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = loop {
        match recvmsg(
            &socket,
            &mut [IoSliceMut::new(buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(Errno::INTR) => {}
            result => break result?,
        }
    };
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    if message.flags.contains(ReturnFlags::CTRUNC) {
        // Some of them are worth nothing without the others.
        descriptors.clear();
    }
    Ok(Received {
        length: message.bytes,
        descriptors,
    })
}
