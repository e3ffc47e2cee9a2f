//! Lanes that do something to the bytes.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use roost_core::id::{HostId, JobId};
use roost_core::trust::{Authority, Handshake, PREAMBLE_BYTES, Secure, Trust};
use roost_rdma::Lane;

/// TLS, as it is between hosts.
struct Secured {
    socket: TcpStream,
    secure: Secure,
}

impl Lane for Secured {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.secure.read(&mut self.socket, into)
    }

    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.secure.write(&mut self.socket, from)
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.secure.flush(&mut self.socket)
    }

    fn has_buffered(&self) -> bool {
        self.secure.has_buffered()
    }

    fn is_unix(&self) -> bool {
        false
    }

    fn is_plain(&self) -> bool {
        false
    }
}

fn sides() -> &'static [Trust; 2] {
    static SIDES: OnceLock<[Trust; 2]> = OnceLock::new();
    SIDES.get_or_init(|| {
        let authority = Authority::new(JobId([7; 16])).unwrap();
        [1, 2].map(|host| Trust::new(&authority.issue(HostId::new(host).unwrap()).unwrap()).unwrap())
    })
}

/// Both ends of a connection, which have proved themselves to each other.
pub(crate) fn secured(near: OwnedFd, far: OwnedFd) -> [Box<dyn Lane>; 2] {
    let preamble = [0; PREAMBLE_BYTES];
    let [dialler, acceptor] = sides();
    let mut near = (
        TcpStream::from(near),
        dialler.dial(&preamble, HostId::new(2).unwrap()).unwrap(),
    );
    let mut far = (TcpStream::from(far), acceptor.accept(&preamble).unwrap());
    let step = |(socket, shake): &mut (TcpStream, Handshake)| {
        socket.set_nonblocking(true).unwrap();
        shake.write(socket).unwrap();
        if shake.wants_read() {
            shake.read(socket).unwrap();
        }
        shake.write(socket).unwrap();
        shake.is_done()
    };
    while !(step(&mut near) & step(&mut far)) {
        std::thread::yield_now();
    }
    [near, far].map(|(socket, shake)| {
        let secure = shake.finish();
        Box::new(Secured { socket, secure }) as Box<dyn Lane>
    })
}

/// Changes one byte that is read.
pub(crate) struct Flipping {
    socket: TcpStream,
    /// Bytes before it.
    before: usize,
}

impl Flipping {
    pub(crate) fn new(socket: OwnedFd, before: usize) -> Self {
        let socket = TcpStream::from(socket);
        socket.set_nonblocking(true).unwrap();
        Self { socket, before }
    }
}

impl Lane for Flipping {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.socket.read(into)?;
        if let Some(byte) = into[..count].get_mut(self.before) {
            *byte ^= 1;
        }
        self.before = self.before.checked_sub(count).unwrap_or(usize::MAX);
        Ok(count)
    }

    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.write_vectored(from)
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn has_buffered(&self) -> bool {
        false
    }

    fn is_unix(&self) -> bool {
        false
    }

    fn is_plain(&self) -> bool {
        false
    }
}
