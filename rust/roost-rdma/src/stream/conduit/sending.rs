//! The sending half of a connection: messages in their turn, and the bytes of chunks as they lie in memory.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use super::{Conduit, Cut, FAULTS_UNFOUND_MAX};
use crate::limits::{OUTGOING_BYTES_MAX, SLICES_MAX, TURN_BYTES_MAX};
use crate::link::Broken;
use crate::stream::output::ZEROS;
use crate::stream::sys;

impl Conduit {
    /// Sends what the connection takes.
    pub(crate) fn flush(&mut self, scratch: &mut [u8]) -> Result<(), Cut> {
        if self.output_bytes > OUTGOING_BYTES_MAX {
            return Err(Broken("requests, and does not read the answers").into());
        }
        let mut budget = TURN_BYTES_MAX;
        if self.flush_wanted {
            self.flush_wanted = !self.lane.flush()?;
        }
        while budget > 0 && !self.output.is_empty() {
            let sent = if self.lane.is_plain() {
                self.send_plain(scratch)
            } else {
                self.send_copied(scratch)
            };
            match sent {
                Ok(count) => {
                    self.sent(count);
                    budget = budget.saturating_sub(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        if !self.lane.is_plain() {
            self.flush_wanted = !self.lane.flush()?;
        }
        Ok(())
    }

    fn send_plain(&mut self, scratch: &mut [u8]) -> io::Result<usize> {
        self.slices.clear();
        let mut descriptors: &[OwnedFd] = &[];
        for (index, outgoing) in self.output.iter_mut().enumerate() {
            // Descriptors go with the first byte of their message.
            let has_descriptors = !outgoing.descriptors.is_empty() && !outgoing.has_begun();
            if self.slices.len() >= SLICES_MAX || (has_descriptors && index > 0) {
                break;
            }
            outgoing.slices(&mut self.slices);
            if has_descriptors {
                descriptors = &outgoing.descriptors;
                break;
            }
        }
        match sys::send(self.lane.fd(), &mut self.slices, descriptors) {
            Err(error) if sys::is_fault(&error) => {
                let is_found = self
                    .output
                    .iter_mut()
                    .take(SLICES_MAX)
                    .any(|outgoing| outgoing.find_fault(scratch));
                self.faults_unfound += u32::from(!is_found);
                if self.faults_unfound > FAULTS_UNFOUND_MAX {
                    Err(error)
                } else {
                    Ok(0)
                }
            }
            result => result,
        }
    }

    /// Where bytes are not sent as they are, whoever changes them reads a copy, which cannot go away.
    fn send_copied(&mut self, scratch: &mut [u8]) -> io::Result<usize> {
        let Some(outgoing) = self.output.front_mut() else {
            return Ok(0);
        };
        let rest = outgoing.message_rest();
        if !rest.is_empty() {
            return self.lane.write(&[IoSlice::new(rest)]);
        }
        let Some(chunk) = &mut outgoing.chunk else {
            return Ok(0);
        };
        let left = sys::size(chunk.source.left);
        if left == 0 {
            let rest = chunk.trailer_rest();
            return self.lane.write(&[IoSlice::new(rest)]);
        }
        if chunk.source.fault.is_none()
            && let Some((address, bytes)) = chunk.source.first(scratch.len())
        {
            match sys::copy_out(address, &mut scratch[..bytes]) {
                Ok(()) => return self.lane.write(&[IoSlice::new(&scratch[..bytes])]),
                Err(_) => chunk.source.fail(crate::link::Status::Unmapped),
            }
        }
        self.lane.write(&[IoSlice::new(&ZEROS[..left.min(ZEROS.len())])])
    }

    fn sent(&mut self, mut bytes: usize) {
        while let Some(front) = self.output.front_mut() {
            bytes = front.sent(bytes);
            if !front.is_done() {
                return;
            }
            self.output_bytes -= front.held_bytes();
            self.output.pop_front();
        }
    }
}
