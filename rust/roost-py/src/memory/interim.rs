//! Stands for what `roost-rdma` does not give yet.

use std::io;
use std::sync::Arc;

use roost_rdma::{Memory, Run};

pub(super) struct Segment(Box<[u8]>);

impl Segment {
    pub(super) fn empty(bytes: usize) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self(vec![0; bytes].into_boxed_slice())))
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.len()
    }

    pub(super) fn address(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }
}

pub(super) fn memory_of(address: usize, bytes: u64) -> Memory {
    Memory::Foreign { address, bytes }
}

pub(super) fn strided(
    shape: &[u64],
    item_bytes: u64,
    remote: u64,
    remote_strides: &[i64],
    local: usize,
    local_strides: &[i64],
) -> Result<Vec<Run>, String> {
    let Some((&length, rest)) = shape.split_first() else {
        return Ok(vec![Run { remote, local, bytes: item_bytes }]);
    };
    let mut runs: Vec<Run> = Vec::new();
    for item in 0..length {
        let step = i64::try_from(item).expect("small");
        let remote = remote.checked_add_signed(step * remote_strides[0]).ok_or("outside")?;
        let local = local.checked_add_signed((step * local_strides[0]) as isize).ok_or("outside")?;
        for run in strided(rest, item_bytes, remote, &remote_strides[1..], local, &local_strides[1..])? {
            match runs.last_mut() {
                Some(last) if last.remote + last.bytes == run.remote && last.local + last.bytes as usize == run.local => {
                    last.bytes += run.bytes;
                }
                _ => runs.push(run),
            }
        }
    }
    Ok(runs)
}
