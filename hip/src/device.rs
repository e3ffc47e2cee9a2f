//! A device: what it is, and making it the current one of a thread.

use crate::error::GpuError;
use crate::platform::{Gpu, Platform};
use crate::rocm_compat::attribute::Attribute;
use crate::sys;

/// A GPU of this process, by the number that the platform gives it here.
#[derive(Debug, Clone)]
pub struct Device {
    gpu: Gpu,
    number: i32,
}

impl Gpu {
    /// A device by its number.
    ///
    /// # Errors
    ///
    /// When there is none of that number.
    pub fn device(&self, number: i32) -> Result<Device, GpuError> {
        let count = self.device_count()?;
        if !(0..count).contains(&number) {
            return Err(GpuError::refused(format!(
                "there is no device {number}: this process sees {count}"
            )));
        }
        Ok(Device {
            gpu: self.clone(),
            number,
        })
    }

    /// The current device of this thread.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn current_device(&self) -> Result<Device, GpuError> {
        Ok(Device {
            gpu: self.clone(),
            number: self.api().device()?,
        })
    }
}

impl Device {
    /// Its number in this process.
    pub fn number(&self) -> i32 {
        self.number
    }

    /// The GPUs that it is one of.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Its name, as the vendor sells it.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn name(&self) -> Result<String, GpuError> {
        let properties = self.gpu.api().properties(self.number)?;
        Ok(text(&properties.bytes[sys::DEVICE_NAME]))
    }

    /// What code must be built for: "gfx942" of "gfx942:sramecc+:xnack-", or "`sm_90`".
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn architecture(&self) -> Result<String, GpuError> {
        match self.gpu.platform() {
            Platform::Rocm => {
                let properties = self.gpu.api().properties(self.number)?;
                let whole = text(&properties.bytes[sys::GCN_ARCH_NAME]);
                Ok(whole.split(':').next().unwrap_or_default().to_owned())
            }
            Platform::Cuda => {
                let major = self.attribute(Attribute::ComputeCapabilityMajor)?;
                let minor = self.attribute(Attribute::ComputeCapabilityMinor)?;
                Ok(format!("sm_{major}{minor}"))
            }
        }
    }

    /// An attribute's value.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn attribute(&self, attribute: Attribute) -> Result<i32, GpuError> {
        self.gpu.api().attribute(attribute, self.number)
    }

    /// Its PCI address, such as "0000:c1:00.0". Its number changes with the variables that make devices visible, this does not.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn pci_address(&self) -> Result<String, GpuError> {
        self.gpu.api().pci_address(self.number)
    }

    /// The 16 bytes that name it on any host.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn uuid(&self) -> Result<[u8; 16], GpuError> {
        self.gpu.api().uuid(self.number)
    }

    /// Whether it can read another's memory without the host.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn can_access(&self, peer: &Self) -> Result<bool, GpuError> {
        self.gpu.api().can_access_peer(self.number, peer.number)
    }

    /// Lets it read another's memory; that it may already is no error.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn enable_access(&self, peer: &Self) -> Result<(), GpuError> {
        self.with(|| self.gpu.api().enable_peer_access(peer.number))
    }

    /// Free and total bytes of its memory.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn memory_bytes(&self) -> Result<(usize, usize), GpuError> {
        self.with(|| self.gpu.api().memory_info())
    }

    /// Waits until all of its work is done. Blocks the thread.
    ///
    /// # Errors
    ///
    /// What went wrong on the device since the last call that could tell.
    pub fn synchronize(&self) -> Result<(), GpuError> {
        self.with(|| self.gpu.api().synchronize())
    }

    /// Runs `work` while this is the thread's current device; the one before is put back.
    ///
    /// # Errors
    ///
    /// What the runtime or `work` says.
    pub fn with<T>(&self, work: impl FnOnce() -> Result<T, GpuError>) -> Result<T, GpuError> {
        let api = self.gpu.api();
        let before = api.device()?;
        if before != self.number {
            api.set_device(self.number)?;
        }
        let done = work();
        if before != self.number {
            api.set_device(before)?;
        }
        done
    }
}

/// A text in a fixed room, up to its zero byte.
fn text(room: &[u8]) -> String {
    String::from_utf8_lossy(room.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}
