//! What one-sided memory asks of a GPU's driver. The libraries are opened when the process has one of its own: memory of a
//! GPU can only come from there, and a process without one is asked about its memory, too.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use pyo3::PyResult;
use roost_hip::library::{Search, loaded_copies, loads};
use roost_hip::{Choice, Gpu, export};
use roost_rdma::gpu::{Allocation, Exporter};

use super::{Wanted, choice};

/// The one for this process; none where the user wants no GPU.
pub(crate) fn exporter(wanted: Wanted) -> PyResult<Option<Arc<dyn Exporter>>> {
    let (choice, search) = choice(wanted)?;
    if matches!(choice, Choice::None) {
        return Ok(None);
    }
    let known = OnceLock::new();
    Ok(Some(Arc::new(Driver {
        choice,
        search,
        known,
        loads_without: AtomicU64::new(0),
    })))
}

struct Driver {
    choice: Choice,
    search: Search,
    known: OnceLock<export::Exporter>,
    /// How many libraries the process had loaded when none of them was a GPU's: each transfer asks, and few load one.
    loads_without: AtomicU64,
}

impl Driver {
    fn get(&self) -> Option<&export::Exporter> {
        if let Some(known) = self.known.get() {
            return Some(known);
        }
        let loads = loads();
        if self.loads_without.load(Ordering::Relaxed) == loads {
            return None;
        }
        if ["libamdhip64", "libcudart"]
            .iter()
            .all(|stem| loaded_copies(stem).is_empty())
        {
            self.loads_without.store(loads, Ordering::Relaxed);
            return None;
        }
        let gpu = Gpu::open(self.choice, &self.search).ok()?;
        Some(self.known.get_or_init(|| export::Exporter::new(gpu)))
    }
}

impl Exporter for Driver {
    fn allocation(&self, address: usize) -> Option<Allocation> {
        self.get()?.allocation(address).map(|found| Allocation {
            base: found.base,
            bytes: found.bytes,
            device: found.device,
            number: found.number,
        })
    }

    fn dma_buf(&self, base: usize, bytes: u64) -> Result<(OwnedFd, u64), String> {
        let driver = self.get().ok_or("this process has no GPU's library")?;
        driver.dma_buf(base, bytes).map_err(|error| error.to_string())
    }

    fn pci_address(&self, device: u32) -> Option<String> {
        self.get()?.pci_address(device)
    }
}
