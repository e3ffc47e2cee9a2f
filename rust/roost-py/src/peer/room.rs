//! Parts that come in pieces from another host: each goes straight to where it stays.

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use roost_core::session::{Bulks, Session};
use roost_core::wire::{Bulk, BulkPart, FrameHead, ProtocolError};

use crate::segment::{NewBytes, PrivateBuffer, SegmentMap};

/// Parts from this size on get mapped memory of their own.
const MAPPED_BYTES_MIN: u64 = 256 << 10;

/// A piece of which so much has not come yet is read to its place; less of it goes by way of the reader's buffer.
const DIRECT_BYTES_MIN: usize = 16 << 10;

/// Where one part gathers. Its memory follows the bytes that come: pages that nobody has written to are not there.
pub(crate) enum Room {
    Mapped(PrivateBuffer),
    /// What its receiver never writes to becomes `bytes` without a copy.
    Constant(NewBytes),
    Small(Vec<u8>),
}

/// Why a piece cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoomError {
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error("no memory for a part of {length} bytes: {source}")]
    Memory { length: u64, source: std::io::Error },
}

impl Room {
    fn new(map: &SegmentMap, bulk: &Bulk) -> Result<Self, RoomError> {
        let length = bulk.length;
        if bulk.constant {
            let bytes = NewBytes::new(length).map_err(|source| RoomError::Memory { length, source })?;
            return Ok(Self::Constant(bytes));
        }
        if length < MAPPED_BYTES_MIN {
            return Ok(Self::Small(Vec::new()));
        }
        match map.private(length) {
            Ok(buffer) => Ok(Self::Mapped(buffer)),
            Err(source) => Err(RoomError::Memory { length, source }),
        }
    }

    fn slot(&mut self, offset: usize, length: usize) -> &mut [u8] {
        match self {
            Self::Mapped(buffer) => &mut buffer.bytes_mut()[offset..offset + length],
            Self::Constant(bytes) => &mut bytes.bytes_mut()[offset..offset + length],
            Self::Small(bytes) => {
                if bytes.len() < offset + length {
                    bytes.resize(offset + length, 0);
                }
                &mut bytes[offset..offset + length]
            }
        }
    }

    /// The part as bytes: where it is the pickle.
    pub(crate) fn into_bytes(mut self, py: Python<'_>, length: u64) -> Py<PyBytes> {
        if let Self::Constant(bytes) = self {
            return bytes.into_python();
        }
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        PyBytes::new(py, self.slot(0, length)).unbind()
    }

    /// The part as what `pickle.loads` takes for a buffer: nobody else's, and writable unless it is constant.
    pub(crate) fn into_python(self, py: Python<'_>, length: u64) -> PyResult<Py<PyAny>> {
        match self {
            Self::Mapped(buffer) => Ok(Bound::new(py, SegmentMap::owned(buffer, length))?
                .into_any()
                .unbind()),
            Self::Constant(bytes) => Ok(bytes.into_python().into_any()),
            Self::Small(bytes) => Ok(PyByteArray::new(py, &bytes).into_any().unbind()),
        }
    }
}

/// A piece that is being read to its place.
struct Direct {
    head: FrameHead,
    bulk: Bulk,
    piece: usize,
    got: usize,
}

/// The parts that have begun to come.
#[derive(Default)]
pub(crate) struct Inbox {
    bulks: Bulks<Room>,
    direct: Option<Direct>,
}

impl Inbox {
    /// A piece came whole.
    pub(crate) fn piece(&mut self, map: &SegmentMap, bulk: &Bulk, piece: &[u8]) -> Result<(), RoomError> {
        if bulk.given_up {
            self.bulks.give_up(bulk);
            return Ok(());
        }
        let room = self.bulks.room(bulk, piece.len(), |_| Room::new(map, bulk))?;
        room.slot(place(bulk), piece.len()).copy_from_slice(piece);
        self.bulks.filled(bulk, piece.len());
        Ok(())
    }

    /// A frame names a part.
    pub(crate) fn take(&mut self, part: &BulkPart) -> Result<Room, ProtocolError> {
        self.bulks.take(part)
    }

    /// The connection is replaced: a piece that has come in part comes again.
    pub(super) fn restart(&mut self) {
        self.direct = None;
    }

    /// When these bytes begin with a piece of which much is still to come, what there is of it goes to its place, and the rest
    /// follows by [`Inbox::slot`]. How many bytes were used.
    pub(super) fn begin(
        &mut self,
        map: &SegmentMap,
        session: &Session,
        epoch: u32,
        bytes: &[u8],
    ) -> Result<usize, RoomError> {
        let Some((head, bulk)) = Bulk::peek(bytes)? else {
            return Ok(0);
        };
        let body = FrameHead::BYTES + head.header_length as usize;
        let missing = head.frame_length().saturating_sub(bytes.len());
        if missing < DIRECT_BYTES_MIN || bulk.given_up || head.epoch > epoch || !session.is_next(&head) {
            return Ok(0);
        }
        let piece = head.frame_length() - body;
        let got = bytes.len() - body;
        let room = self.bulks.room(&bulk, piece, |_| Room::new(map, &bulk))?;
        room.slot(place(&bulk), got).copy_from_slice(&bytes[body..]);
        self.direct = Some(Direct {
            head,
            bulk,
            piece,
            got,
        });
        Ok(bytes.len())
    }

    /// Where the next bytes of the connection belong, when that is not the reader's buffer.
    pub(super) fn slot(&mut self) -> Option<&mut [u8]> {
        let direct = self.direct.as_ref()?;
        let room = self.bulks.open(direct.bulk.bulk)?;
        Some(room.slot(place(&direct.bulk) + direct.got, direct.piece - direct.got))
    }

    /// So many bytes were read there.
    pub(super) fn got(&mut self, count: usize) {
        if let Some(direct) = &mut self.direct {
            direct.got += count;
        }
    }

    /// Whether a piece is being read that is not whole.
    pub(super) fn is_reading(&self) -> bool {
        self.direct.is_some()
    }

    /// Number the piece that was being read, if it is whole now.
    pub(super) fn end(&mut self, session: &mut Session, now_ns: u64) -> Result<(), ProtocolError> {
        let Some(direct) = self.direct.take_if(|direct| direct.got == direct.piece) else {
            return Ok(());
        };
        session.receive_head(now_ns, direct.head)?;
        self.bulks.filled(&direct.bulk, direct.piece);
        Ok(())
    }
}

/// Where a piece lies in its room: it was checked against the part's length, which is at most 4 GiB.
fn place(bulk: &Bulk) -> usize {
    usize::try_from(bulk.offset).unwrap_or(usize::MAX)
}
