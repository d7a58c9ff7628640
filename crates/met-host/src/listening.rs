//! Which process listens on a port, for a program that wants to and cannot.

use std::collections::HashSet;
use std::fs;

/// The process that listens on a TCP port: its number and what it is. `None` where it is not this user's to see.
pub fn listener_of(port: u16) -> Option<(u32, String)> {
    let mut sockets = HashSet::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        sockets.extend(listening(&text, port).map(|inode| format!("socket:[{inode}]")));
    }
    if sockets.is_empty() {
        return None;
    }
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = pids.find(|pid| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        targets.any(|target| target.to_str().is_some_and(|target| sockets.contains(target)))
    })?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    Some((pid, name(&command)))
}

/// The sockets of a table of the kernel that listen on a port, by their inodes.
fn listening(table: &str, port: u16) -> impl Iterator<Item = &str> {
    const LISTENS: &str = "0A";
    table.lines().filter_map(move |line| {
        let mut fields = line.split_whitespace();
        let local = fields.nth(1)?.rsplit_once(':')?.1;
        let is_it = fields.nth(1)? == LISTENS && u16::from_str_radix(local, 16) == Ok(port);
        fields.nth(5).filter(|_| is_it)
    })
}

/// The program of a command line without its folder, and the first word after it: `met server`.
fn name(command: &[u8]) -> String {
    let mut words = command.split(|&byte| byte == 0).map(String::from_utf8_lossy);
    let program = words.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default();
    let second = words.next().filter(|word| word.chars().all(|letter| letter.is_ascii_alphabetic()));
    let name = [program, second.as_deref().unwrap_or_default()].join(" ");
    name.trim().chars().filter(|letter| !letter.is_control()).take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_that_listen_on_the_port_are_found_in_the_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2465 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0
   1: 0100007F:2465 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 20 4 30 10 -1
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0 100 0 0 10 0
";
        assert_eq!(listening(table, 0x2465).collect::<Vec<_>>(), ["4711"]);
        assert_eq!(listening(table, 22).collect::<Vec<_>>(), ["4713"]);
        assert_eq!(listening("", 22).count(), 0);
    }

    #[test]
    fn a_program_is_named_without_its_folder() {
        assert_eq!(name(b"/usr/bin/met\0server\0"), "met server");
        assert_eq!(name(b"/usr/sbin/nginx\0-g\0daemon off;\0"), "nginx");
        assert_eq!(name(b""), "");
    }

    #[test]
    fn this_process_is_found_by_what_it_listens_on() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(listener_of(port).map(|(pid, _)| pid), Some(std::process::id()));
        drop(listener);
    }
}
