//! Which cards a job was given, by what its environment and its devices cgroup say.

/// The cards that somebody was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The variable, or what else says so.
    pub source: &'static str,
    /// Only cards of this maker are meant; `None`: whoever numbers them.
    pub vendor: Option<&'static str>,
    pub cards: Vec<CardRef>,
    /// Its numbers are CUDA's, which puts the fastest card first unless it is told to count as the driver
    /// does: where cards differ, they may mean others.
    pub fastest_first: bool,
}

/// How a card is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CardRef {
    All,
    /// The driver's number; of a part of a card also the number of the part.
    Index(u32, Option<u32>),
    /// A uuid or as much of its beginning as tells it from the others.
    Uuid(String),
    /// A device file.
    Device(u32, u32),
}

const CUDA: &str = "CUDA_VISIBLE_DEVICES";

/// In order of belief. Inside a job whose other cards are hidden, CUDA counts from 0 again: what the
/// scheduler wrote comes first.
const VARIABLES: [(&str, Option<&str>); 8] = [
    ("SLURM_STEP_GPUS", None),
    ("SLURM_JOB_GPUS", None),
    (CUDA, Some("nvidia")),
    ("NVIDIA_VISIBLE_DEVICES", Some("nvidia")),
    ("ROCR_VISIBLE_DEVICES", Some("amd")),
    ("HIP_VISIBLE_DEVICES", Some("amd")),
    ("GPU_DEVICE_ORDINAL", Some("amd")),
    ("ZE_AFFINITY_MASK", Some("intel")),
];
/// More cards than any machine has; what is beyond is somebody's joke.
const CARDS_MAX: usize = 1024;

/// What the environment of a process, as /proc/PID/environ has it, says about cards.
pub fn of_environ(environ: &[u8]) -> Option<Holding> {
    let value_of = |name: &str| {
        environ.split(|&byte| byte == 0).find_map(|entry| {
            let (key, value) = entry.split_at(entry.iter().position(|&byte| byte == b'=')?);
            (key == name.as_bytes()).then(|| String::from_utf8_lossy(&value[1..]).into_owned())
        })
    };
    for (source, vendor) in VARIABLES {
        let Some(value) = value_of(source) else { continue };
        let cards = cards(&value);
        if !cards.is_empty() {
            let fastest_first =
                source == CUDA && value_of("CUDA_DEVICE_ORDER").as_deref() != Some("PCI_BUS_ID");
            return Some(Holding { source, vendor, cards, fastest_first });
        }
        // `void` and an empty scheduler's variable say nothing; an empty CUDA list says: none.
        if source == CUDA {
            return None;
        }
    }
    None
}

/// What a list of cards names; CUDA ends its list at the first entry that is none.
fn cards(text: &str) -> Vec<CardRef> {
    let mut cards = Vec::new();
    for entry in text.split(',').map(str::trim) {
        let entry = entry.strip_prefix("gpu:").unwrap_or(entry);
        match entry {
            "all" => cards.push(CardRef::All),
            _ if entry.starts_with("GPU-") || entry.starts_with("MIG-") => {
                cards.push(CardRef::Uuid(entry.to_owned()));
            }
            _ => match numbers(entry) {
                Some(found) => cards.extend(found),
                None => break,
            },
        }
        if cards.len() >= CARDS_MAX {
            cards.truncate(CARDS_MAX);
            break;
        }
    }
    cards
}

/// `3`, `0-3`, or `1.0` and `1:0` for part 0 of card 1.
fn numbers(entry: &str) -> Option<Vec<CardRef>> {
    if let Some((card, part)) = entry.split_once(['.', ':']) {
        return Some(vec![CardRef::Index(card.parse().ok()?, Some(part.parse().ok()?))]);
    }
    let (first, last) = match entry.split_once('-') {
        Some((first, last)) => (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?),
        None => (entry.parse().ok()?, entry.parse().ok()?),
    };
    (last >= first && last - first < CARDS_MAX as u32)
        .then(|| (first..=last).map(|index| CardRef::Index(index, None)).collect())
}

/// What `devices.list` of a cgroup v1 allows, unless it allows everything.
pub fn of_devices(list: &[u8]) -> Option<Holding> {
    /// nvidia and drm; of the former 255 is the control device and no card.
    const MAJORS: [u32; 2] = [195, 226];
    let text = String::from_utf8_lossy(list);
    let mut cards = Vec::new();
    for line in text.lines().take(CARDS_MAX) {
        let mut fields = line.split_whitespace();
        let (kind, device) = (fields.next()?, fields.next()?);
        let (major, minor) = device.split_once(':')?;
        if kind == "a" || (major == "*" && minor == "*") {
            return None;
        }
        if let (Ok(major), Ok(minor)) = (major.parse(), minor.parse::<u32>())
            && kind == "c"
            && MAJORS.contains(&major)
            && !(major == 195 && minor >= 254)
        {
            cards.push(CardRef::Device(major, minor));
        }
    }
    (!cards.is_empty()).then_some(Holding {
        source: "devices cgroup",
        vendor: None,
        cards,
        fastest_first: false,
    })
}

/// A card as a holding may name it.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    pub index: &'a str,
    pub uuid: &'a str,
    pub vendor: &'a str,
    /// The uuid of the card this is a part of, or nothing.
    pub parent: &'a str,
    pub device: &'a str,
}

impl Holding {
    /// Whether it names cards by numbers that may mean others where the machine has different ones. A uuid
    /// and a part's uuid are exact.
    pub fn is_doubtful(&self) -> bool {
        self.fastest_first && self.cards.iter().any(|card| matches!(card, CardRef::Index(..)))
    }

    /// Whether it names a card; `numbered` is whose cards are meant by a number without a maker.
    pub fn includes(&self, card: Named<'_>, numbered: &str) -> bool {
        if self.vendor.is_some_and(|vendor| vendor != card.vendor) {
            return false;
        }
        self.cards.iter().any(|held| match held {
            CardRef::All => true,
            CardRef::Uuid(uuid) => {
                // Of an older driver `MIG-GPU-<uuid>/1/0`, of which `/1/0` is not the beginning of `/1/01`.
                let exact = uuid.starts_with("MIG-") && uuid.contains('/');
                let is_named = if exact { card.uuid == uuid } else { card.uuid.starts_with(uuid.as_str()) };
                is_named || card.parent == uuid.as_str()
            }
            CardRef::Index(..) if self.vendor.is_none() && card.vendor != numbered => false,
            CardRef::Index(index, None) => {
                let whole = card.index.split_once('.').map_or(card.index, |(whole, _)| whole);
                whole.parse() == Ok(*index)
            }
            CardRef::Index(index, Some(part)) => card.index == format!("{index}.{part}"),
            CardRef::Device(major, minor) => card.device == format!("{major}:{minor}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CARD: Named<'_> =
        Named { index: "1", uuid: "GPU-8f2c-77", vendor: "nvidia", parent: "", device: "195:1" };

    fn of(environ: &str) -> Option<Holding> {
        of_environ(environ.replace(' ', "\0").as_bytes())
    }

    #[test]
    fn the_scheduler_is_believed_before_cuda() {
        let held = of("A=1 CUDA_VISIBLE_DEVICES=0 SLURM_JOB_GPUS=2-3").unwrap();
        assert_eq!(held.source, "SLURM_JOB_GPUS");
        assert_eq!(held.cards, [CardRef::Index(2, None), CardRef::Index(3, None)]);
    }

    #[test]
    fn lists_have_numbers_uuids_parts_and_an_end() {
        let held = of("CUDA_VISIBLE_DEVICES=1,GPU-8f2c,MIG-aa,-1,3").unwrap();
        assert_eq!(
            held.cards,
            [CardRef::Index(1, None), CardRef::Uuid("GPU-8f2c".into()), CardRef::Uuid("MIG-aa".into())]
        );
        assert_eq!(of("NVIDIA_VISIBLE_DEVICES=0:1").unwrap().cards, [CardRef::Index(0, Some(1))]);
        for nothing in [
            "CUDA_VISIBLE_DEVICES=",
            "CUDA_VISIBLE_DEVICES=NoDevFiles",
            "NVIDIA_VISIBLE_DEVICES=void",
            "PATH=0",
        ] {
            assert_eq!(of(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn a_card_is_held_by_number_uuid_or_device_of_its_maker() {
        let holds = |environ: &str| of(environ).is_some_and(|held| held.includes(CARD, "nvidia"));
        assert!(holds("CUDA_VISIBLE_DEVICES=0,1") && holds("CUDA_VISIBLE_DEVICES=GPU-8f2c"));
        assert!(holds("NVIDIA_VISIBLE_DEVICES=all") && holds("SLURM_JOB_GPUS=1"));
        assert!(!of("SLURM_JOB_GPUS=1").unwrap().includes(CARD, "amd"), "the number of another maker's");
        assert!(!holds("CUDA_VISIBLE_DEVICES=0") && !holds("ROCR_VISIBLE_DEVICES=1"));
        let part = Named { index: "1.0", uuid: "MIG-1", parent: "GPU-8f2c-77", ..CARD };
        assert!(of("CUDA_VISIBLE_DEVICES=MIG-1").unwrap().includes(part, "nvidia"));
        assert!(of("CUDA_VISIBLE_DEVICES=1").unwrap().includes(part, "nvidia"));
        assert!(!of("CUDA_VISIBLE_DEVICES=MIG-2").unwrap().includes(part, "nvidia"));
    }

    #[test]
    fn cudas_numbers_are_doubtful_unless_it_counts_as_the_driver_does() {
        assert!(of("CUDA_VISIBLE_DEVICES=0").unwrap().is_doubtful());
        assert!(of("CUDA_DEVICE_ORDER=FASTEST_FIRST CUDA_VISIBLE_DEVICES=GPU-8f2c,1").unwrap().is_doubtful());
        for exact in [
            "CUDA_VISIBLE_DEVICES=0,1 CUDA_DEVICE_ORDER=PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES=GPU-8f2c,MIG-aa",
            "SLURM_JOB_GPUS=1",
            "NVIDIA_VISIBLE_DEVICES=1",
        ] {
            assert!(!of(exact).unwrap().is_doubtful(), "{exact}");
        }
    }

    #[test]
    fn no_cards_for_cuda_is_not_all_cards_of_the_container() {
        assert_eq!(of("NVIDIA_VISIBLE_DEVICES=all CUDA_VISIBLE_DEVICES="), None);
        assert_eq!(of("SLURM_JOB_GPUS= CUDA_VISIBLE_DEVICES=2").unwrap().cards, [CardRef::Index(2, None)]);
    }

    #[test]
    fn a_part_is_named_by_its_uuid_of_either_form() {
        let part = |uuid| Named { index: "1.0", uuid, parent: "GPU-8f2c-77", ..CARD };
        let held = of("CUDA_VISIBLE_DEVICES=MIG-GPU-8f2c-77/1/0").unwrap();
        assert!(
            held.includes(part("MIG-GPU-8f2c-77/1/0"), "nvidia")
                && !held.includes(part("MIG-GPU-8f2c-77/1/01"), "nvidia")
        );
        assert!(!held.includes(part("MIG-GPU-8f2c-77/2/0"), "nvidia") && !held.includes(CARD, "nvidia"));
        assert!(of("CUDA_VISIBLE_DEVICES=MIG-77aa").unwrap().includes(part("MIG-77aa-b"), "nvidia"));
    }

    #[test]
    fn a_devices_cgroup_names_cards_unless_it_allows_all() {
        let held = of_devices(b"c 1:3 rwm\nc 195:1 rw\nc 195:255 rw\nb 8:* m\n").unwrap();
        assert_eq!(held.cards, [CardRef::Device(195, 1)]);
        assert!(held.includes(CARD, "nvidia"));
        assert_eq!(of_devices(b"a *:* rwm\n"), None);
        assert_eq!(of_devices(b""), None);
    }

    proptest! {
        #[test]
        fn no_environment_breaks_it(environ: Vec<u8>, list in "[0-9,.:=G-]{0,60}") {
            let _ = of_environ(&environ);
            let _ = of_devices(&environ);
            let _ = of(&format!("CUDA_VISIBLE_DEVICES={list}"));
        }
    }
}
