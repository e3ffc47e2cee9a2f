//! Compares the declarations in `sys` with the C compiler's, where libibverbs' headers are installed.

use super::sys;
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

/// A C expression, and what it has to be.
type Fact = (String, usize);

macro_rules! fields {
    ($facts:ident, $rust:ty, $c:literal, $($field:ident $(= $name:literal)?),*) => {
        $($facts.push((
            format!("offsetof({}, {})", $c, [$($name,)? stringify!($field)][0]),
            offset_of!($rust, $field),
        ));)*
    };
}

macro_rules! sizes {
    ($facts:ident, $($rust:ty = $c:literal),* $(,)?) => { $($facts.push((format!("sizeof({})", $c), size_of::<$rust>()));)* };
}

macro_rules! values {
    ($facts:ident, $($rust:ident = $c:literal),* $(,)?) => { $($facts.push(($c.to_owned(), usize::try_from(sys::$rust).unwrap()));)* };
}

#[expect(clippy::too_many_lines, reason = "a list")]
fn facts() -> Vec<Fact> {
    let mut facts = Vec::new();
    fields!(
        facts,
        sys::Device,
        "struct ibv_device",
        node_type,
        transport_type,
        name,
        dev_name,
        dev_path,
        ibdev_path
    );
    fields!(
        facts,
        sys::ContextOps,
        "struct ibv_context_ops",
        poll_cq,
        req_notify_cq,
        post_send
    );
    fields!(
        facts,
        sys::Context,
        "struct ibv_context",
        device,
        ops,
        cmd_fd,
        async_fd,
        num_comp_vectors
    );
    fields!(
        facts,
        sys::MemoryRegion,
        "struct ibv_mr",
        context,
        pd,
        addr,
        length,
        handle,
        lkey,
        rkey
    );
    fields!(
        facts,
        sys::CompletionChannel,
        "struct ibv_comp_channel",
        context,
        fd,
        refcnt
    );
    fields!(
        facts,
        sys::CompletionQueue,
        "struct ibv_cq",
        context,
        channel,
        cq_context,
        handle,
        cqe
    );
    fields!(
        facts,
        sys::QueuePair,
        "struct ibv_qp",
        context,
        send_cq,
        recv_cq,
        handle,
        qp_num,
        state,
        qp_type
    );
    fields!(
        facts,
        sys::DeviceAttr,
        "struct ibv_device_attr",
        max_mr_size,
        max_qp_wr,
        max_cqe,
        max_mr,
        max_qp_rd_atom,
        max_qp_init_rd_atom
    );
    fields!(
        facts,
        sys::DeviceAttr,
        "struct ibv_device_attr",
        atomic_cap,
        max_pkeys,
        local_ca_ack_delay,
        phys_port_cnt
    );
    fields!(
        facts,
        sys::PortAttr,
        "struct ibv_port_attr",
        state,
        active_mtu,
        gid_tbl_len,
        max_msg_sz,
        lid,
        link_layer,
        port_cap_flags2
    );
    fields!(
        facts,
        sys::GidEntry,
        "struct ibv_gid_entry",
        gid,
        gid_index,
        port_num,
        gid_type,
        ndev_ifindex
    );
    fields!(
        facts,
        sys::GlobalRoute,
        "struct ibv_global_route",
        dgid,
        flow_label,
        sgid_index,
        hop_limit,
        traffic_class
    );
    fields!(
        facts,
        sys::AddressAttr,
        "struct ibv_ah_attr",
        grh,
        dlid,
        sl,
        is_global,
        port_num
    );
    fields!(
        facts,
        sys::QueuePairInit,
        "struct ibv_qp_init_attr",
        send_cq,
        recv_cq,
        cap,
        qp_type,
        sq_sig_all
    );
    fields!(
        facts,
        sys::QueuePairAttr,
        "struct ibv_qp_attr",
        qp_state,
        path_mtu,
        rq_psn,
        sq_psn,
        dest_qp_num,
        qp_access_flags,
        cap,
        ah_attr
    );
    fields!(
        facts,
        sys::QueuePairAttr,
        "struct ibv_qp_attr",
        pkey_index,
        max_rd_atomic,
        max_dest_rd_atomic,
        min_rnr_timer,
        port_num,
        timeout
    );
    fields!(
        facts,
        sys::QueuePairAttr,
        "struct ibv_qp_attr",
        retry_cnt,
        rnr_retry,
        alt_timeout,
        rate_limit
    );
    fields!(facts, sys::ScatterGather, "struct ibv_sge", addr, length, lkey);
    fields!(
        facts,
        sys::SendRequest,
        "struct ibv_send_wr",
        wr_id,
        next,
        sg_list,
        num_sge,
        opcode,
        send_flags
    );
    fields!(
        facts,
        sys::SendRequest,
        "struct ibv_send_wr",
        remote_addr = "wr.rdma.remote_addr",
        rkey = "wr.rdma.rkey"
    );
    fields!(
        facts,
        sys::WorkCompletion,
        "struct ibv_wc",
        wr_id,
        status,
        opcode,
        vendor_err,
        byte_len,
        qp_num,
        wc_flags,
        dlid_path_bits
    );
    sizes!(
        facts,
        sys::Device = "struct ibv_device",
        sys::ContextOps = "struct ibv_context_ops",
        sys::MemoryRegion = "struct ibv_mr",
        sys::Gid = "union ibv_gid",
        sys::GidEntry = "struct ibv_gid_entry",
        sys::AddressAttr = "struct ibv_ah_attr",
        sys::QueuePairInit = "struct ibv_qp_init_attr",
        sys::QueuePairAttr = "struct ibv_qp_attr",
        sys::ScatterGather = "struct ibv_sge",
        sys::SendRequest = "struct ibv_send_wr",
        sys::WorkCompletion = "struct ibv_wc",
    );
    values!(
        facts,
        NODE_CA = "IBV_NODE_CA",
        PORT_ACTIVE = "IBV_PORT_ACTIVE",
        GID_TYPE_ROCE_V2 = "IBV_GID_TYPE_ROCE_V2",
        QPT_RC = "IBV_QPT_RC",
        QPS_INIT = "IBV_QPS_INIT",
        QPS_RTR = "IBV_QPS_RTR",
        QPS_RTS = "IBV_QPS_RTS",
        QPS_ERR = "IBV_QPS_ERR",
        QP_ACCESS_FLAGS = "IBV_QP_ACCESS_FLAGS",
        QP_AV = "IBV_QP_AV",
        QP_MIN_RNR_TIMER = "IBV_QP_MIN_RNR_TIMER",
        QP_MAX_QP_RD_ATOMIC = "IBV_QP_MAX_QP_RD_ATOMIC",
        QP_MAX_DEST_RD_ATOMIC = "IBV_QP_MAX_DEST_RD_ATOMIC",
        QP_DEST_QPN = "IBV_QP_DEST_QPN",
        ACCESS_REMOTE_WRITE = "IBV_ACCESS_REMOTE_WRITE",
        ACCESS_REMOTE_READ = "IBV_ACCESS_REMOTE_READ",
        WR_RDMA_READ = "IBV_WR_RDMA_READ",
        SEND_SIGNALED = "IBV_SEND_SIGNALED",
        WC_LOC_PROT_ERR = "IBV_WC_LOC_PROT_ERR",
        WC_WR_FLUSH_ERR = "IBV_WC_WR_FLUSH_ERR",
        WC_REM_INV_REQ_ERR = "IBV_WC_REM_INV_REQ_ERR",
        WC_REM_ACCESS_ERR = "IBV_WC_REM_ACCESS_ERR",
        WC_REM_OP_ERR = "IBV_WC_REM_OP_ERR",
    );
    facts
}

#[test]
fn the_declarations_are_those_of_the_headers() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        eprintln!(
            "libibverbs' headers are not installed here (apt-get install libibverbs-dev): nothing to compare with"
        );
        return;
    }
    let facts = facts();
    let mut source =
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {\n"
            .to_owned();
    for (expression, _) in &facts {
        writeln!(source, "    printf(\"%zu\\n\", (size_t)({expression}));").unwrap();
    }
    source.push_str("    return 0;\n}\n");
    let folder = std::env::temp_dir().join(format!("roost-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, program) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&file, source).unwrap();
    let compiled = Command::new("cc")
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let said = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let theirs: Vec<usize> = said.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), facts.len());
    let wrong: Vec<_> = facts
        .iter()
        .zip(theirs)
        .filter(|((_, ours), theirs)| ours != theirs)
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}
