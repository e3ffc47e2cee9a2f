//! How near a device is to memory: NUMA node and PCI distance, as sysfs has them.

use std::fs;
use std::path::{Component, Path};

/// Where a PCI device sits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Its NUMA node. None where the system does not know (a virtual machine, one node): that means far, not unreachable.
    pub numa_node: Option<u32>,
    /// Bridges and device from the root, `pci0000:00/0000:00:03.0/0000:01:00.0`; empty for what is not on PCI (soft-RoCE).
    pci: Vec<String>,
}

/// The largest distance: nothing is known, or another root.
pub const FAR: u32 = 64;

impl Place {
    /// Of an RDMA device, by its folder under `/sys/class/infiniband`.
    pub fn of_rdma(folder: &Path) -> Self {
        Self::of(&folder.join("device"))
    }

    /// Of the device at a PCI address such as `0000:01:00.0`, as the GPU's driver gives it.
    pub fn of_pci(address: &str) -> Self {
        Self::of(&Path::new("/sys/bus/pci/devices").join(address.to_lowercase()))
    }

    fn of(device: &Path) -> Self {
        let numa_node = fs::read_to_string(device.join("numa_node"))
            .ok()
            .and_then(|text| text.trim().parse().ok());
        // The class' entry is a link into the tree of devices, and that path is the way from the root to it.
        let pci = device
            .canonicalize()
            .map(|path| pci_path(&path))
            .unwrap_or_default();
        Self { numa_node, pci }
    }

    /// 0 for the same device, one more for each bridge between them; behind different roots the NUMA node decides.
    pub fn distance(&self, other: &Self) -> u32 {
        let common = self
            .pci
            .iter()
            .zip(&other.pci)
            .take_while(|(one, two)| one == two)
            .count();
        if common > 0 {
            let steps = self.pci.len() + other.pci.len() - 2 * common;
            return u32::try_from(steps).unwrap_or(FAR).min(FAR / 2 - 1);
        }
        match (self.numa_node, other.numa_node) {
            (Some(one), Some(two)) if one == two => FAR / 2,
            _ => FAR,
        }
    }
}

fn pci_path(path: &Path) -> Vec<String> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => name.to_str().map(str::to_owned),
        _ => None,
    });
    names.skip_while(|name| !name.starts_with("pci")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(numa_node: Option<u32>, path: &str) -> Place {
        Place {
            numa_node,
            pci: pci_path(Path::new(path)),
        }
    }

    #[test]
    fn devices_behind_one_bridge_are_nearer_than_those_behind_one_root() {
        let gpu = place(
            Some(0),
            "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:00.0",
        );
        let beside = place(
            Some(0),
            "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:01.0",
        );
        let same_root = place(Some(0), "/sys/devices/pci0000:00/0000:00:09.0/0000:09:00.0");
        let same_node = place(Some(0), "/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0");
        let elsewhere = place(Some(1), "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0");
        let distances = [&gpu, &beside, &same_root, &same_node, &elsewhere].map(|other| gpu.distance(other));
        assert!(
            distances.is_sorted() && distances.windows(2).all(|pair| pair[0] < pair[1]),
            "{distances:?}"
        );
    }

    #[test]
    fn what_is_not_known_is_far_and_not_an_error() {
        let soft = place(None, "/sys/devices/virtual/net/veth0");
        assert_eq!(soft.distance(&soft), FAR);
        assert_eq!(Place::of_rdma(Path::new("/nowhere")), Place::default());
    }
}
