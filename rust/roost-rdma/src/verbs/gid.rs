//! The address of a port: a RoCE v2 GID chosen by its type, or InfiniBand's.

use super::device::Context;
use super::sys;
use std::fs;

/// An entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// 128 bits in network order.
    pub raw: [u8; 16],
    /// Its place in the port's table, which differs from machine to machine.
    pub index: u8,
}

impl Gid {
    fn is_ipv4(&self) -> bool {
        self.raw[..10] == [0; 10] && self.raw[10..12] == [0xff; 2]
    }

    fn is_link_local(&self) -> bool {
        self.raw[0] == 0xfe && self.raw[1] & 0xc0 == 0x80
    }

    /// IPv4 first, since that is what fabrics route; link-local last, since it never leaves the segment.
    fn rank(&self) -> u8 {
        match () {
            () if self.is_ipv4() => 0,
            () if !self.is_link_local() => 1,
            () => 2,
        }
    }
}

/// The best GID of the port, or why there is none.
pub(super) fn choose(context: &Context, port: u8, attributes: &sys::PortAttr) -> Result<Gid, String> {
    if attributes.link_layer == sys::LINK_LAYER_INFINIBAND {
        return context
            .gid(port, 0)
            .map(|raw| Gid { raw, index: 0 })
            .map_err(|errno| format!("its GID cannot be read: error {errno}"));
    }
    let candidates = match context.gid_table() {
        Some(table) => of_table(&table, port),
        None => of_sysfs(context, port, attributes.gid_tbl_len),
    };
    best(candidates)
        .ok_or_else(|| "it has no RoCE v2 address: give its network interface an IP address".into())
}

fn best(candidates: Vec<Gid>) -> Option<Gid> {
    candidates
        .into_iter()
        .filter(|gid| gid.raw != [0; 16])
        .min_by_key(|gid| (gid.rank(), gid.index))
}

fn of_table(table: &[sys::GidEntry], port: u8) -> Vec<Gid> {
    let usable = table
        .iter()
        .filter(|entry| entry.port_num == u32::from(port) && entry.gid_type == sys::GID_TYPE_ROCE_V2);
    usable
        .filter_map(|entry| {
            Some(Gid {
                raw: entry.gid.raw,
                index: u8::try_from(entry.gid_index).ok()?,
            })
        })
        .collect()
}

/// Older libraries do not tell the type; the kernel does, in a file for each entry.
fn of_sysfs(context: &Context, port: u8, entries: i32) -> Vec<Gid> {
    let types = context.folder.join(format!("ports/{port}/gid_attrs/types"));
    let is_v2 = |index: u8| {
        fs::read_to_string(types.join(index.to_string())).is_ok_and(|kind| kind.trim() == "RoCE v2")
    };
    let indexes = 0..u8::try_from(entries).unwrap_or(u8::MAX);
    indexes
        .filter(|index| is_v2(*index))
        .filter_map(|index| {
            Some(Gid {
                raw: context.gid(port, index).ok()?,
                index,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(raw: [u8; 16], index: u32, port: u32, kind: u32) -> sys::GidEntry {
        sys::GidEntry {
            gid: sys::Gid { raw },
            gid_index: index,
            port_num: port,
            gid_type: kind,
            ndev_ifindex: 0,
        }
    }

    const LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    const V6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    const V4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1];

    #[test]
    fn the_type_decides_and_not_the_place() {
        let table = [
            entry(V4, 0, 1, 1),
            entry(LOCAL, 1, 1, 2),
            entry(V6, 3, 1, 2),
            entry(V4, 5, 1, 2),
            entry(V4, 2, 2, 2),
        ];
        assert_eq!(best(of_table(&table, 1)), Some(Gid { raw: V4, index: 5 }));
        assert_eq!(best(of_table(&table[..3], 1)), Some(Gid { raw: V6, index: 3 }));
        assert_eq!(best(of_table(&table[..2], 1)), Some(Gid { raw: LOCAL, index: 1 }));
        assert_eq!(best(of_table(&table[..1], 1)), None);
    }
}
