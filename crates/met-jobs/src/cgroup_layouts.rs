//! Recognises who made a cgroup by its name: one table of layouts, which the configuration may extend.

pub mod colmet_options;

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use met_core::managers::{Class, MANAGERS};
use met_host::{Host, parse};
use regex_lite::Regex;

use crate::{environ, scheduler};

/// Longer ids are cut: no manager gives such ones, and they would only fill the store.
const ID_BYTES_MAX: usize = 128;
/// Each `*` of one name multiplies the work of comparing it.
const STARS_MAX: usize = 3;
const EXPRESSION_BYTES_MAX: usize = 1 << 10;
/// Deeper patterns than any manager's are a mistake.
const SEGMENTS_MAX: usize = 16;

/// What the path of a cgroup may contain about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Id,
    Sluid,
    Uid,
    User,
    Node,
    Cluster,
    Index,
    Step,
    Task,
    /// Parsed, but not used.
    Qos,
}

const FIELDS: &[(&str, Field)] = &[
    ("id", Field::Id),
    ("sluid", Field::Sluid),
    ("uid", Field::Uid),
    ("user", Field::User),
    ("node", Field::Node),
    ("cluster", Field::Cluster),
    ("index", Field::Index),
    ("step", Field::Step),
    ("task", Field::Task),
    ("qos", Field::Qos),
];

/// What was parsed from the path of a job. Its text is printable, whatever the directory was called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captures {
    pub id: Option<String>,
    /// The name of a job whose id only its processes know.
    pub sluid: Option<String>,
    pub uid: Option<u32>,
    pub user: Option<String>,
    pub node: Option<String>,
    pub cluster: Option<String>,
    pub index: Option<String>,
    pub step: Option<String>,
    pub task: Option<String>,
}

impl Captures {
    /// The manager's id of the job, if the path has it: each element of an array is a job.
    pub fn job_id(&self) -> Option<String> {
        let id = self.id.as_ref()?;
        Some(match &self.index {
            Some(index) => format!("{id}[{index}]"),
            None => id.clone(),
        })
    }

    fn set(&mut self, field: Field, bytes: &[u8]) {
        let text = || Some(printable(bytes));
        match field {
            Field::Id => self.id = text(),
            Field::Sluid => self.sluid = text(),
            Field::Uid => self.uid = parse::u32(bytes),
            Field::User => self.user = text(),
            Field::Node => self.node = text(),
            Field::Cluster => self.cluster = text(),
            Field::Index => self.index = text(),
            Field::Step => self.step = text(),
            Field::Task => self.task = text(),
            Field::Qos => {}
        }
    }
}

/// A name from a directory as it may be shown and stored: what is not printable ASCII is written as `%0a`.
fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if text.len() + 3 > ID_BYTES_MAX {
            break;
        }
        match byte {
            b'!'..=b'~' if byte != b'%' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02x}")),
        }
    }
    text
}

/// One way in which a manager names its cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    manager: Cow<'static, str>,
    class: Class,
    /// How many leading segments of the path are in parentheses.
    optional: usize,
    segments: Vec<Segment>,
    parts: Vec<Segment>,
}

impl Layout {
    /// A layout as the configuration gives it.
    pub fn parse(manager: &str, path: &str, parts: &str) -> Result<Layout, String> {
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        if manager.is_empty() || manager.len() > 32 || !manager.bytes().all(known) || manager == "local" {
            return Err(format!("{manager:?} is not a valid manager name; write a short word in lower case"));
        }
        let layout = Layout::of(Cow::Owned(manager.to_owned()), Class::Managed, path, parts)?;
        let names_job = |segment: &Segment| segment.tokens.contains(&Token::Begin(Field::Id));
        if !layout.segments.last().is_some_and(names_job) {
            return Err(format!("{path:?} does not end in a name with {{id}}"));
        }
        Ok(layout)
    }

    /// Jobs below a folder whose id is the first group of a regular expression, found anywhere in the name.
    pub fn searched(manager: &str, folder: &str, regex: &str) -> Result<Layout, String> {
        let mut layout = Layout::parse(manager, &format!("{folder}/{{id}}"), "")?;
        let expression = Some(Expression::parse(regex)?);
        if let Some(last) = layout.segments.last_mut() {
            *last = Segment { tokens: Vec::new(), expression };
        }
        Ok(layout)
    }

    fn of(manager: Cow<'static, str>, class: Class, path: &str, parts: &str) -> Result<Layout, String> {
        let (optional, rest) = match path.strip_prefix('(') {
            Some(inner) => inner.split_once("/)").ok_or_else(|| format!("{path:?}: no closing \"/)\""))?,
            None => ("", path),
        };
        let split = |text: &str| match text {
            "" => Ok(Vec::new()),
            text => text.trim_matches('/').split('/').map(Segment::parse).collect::<Result<Vec<_>, _>>(),
        };
        let mut segments = split(optional)?;
        let optional = segments.len();
        segments.extend(split(rest)?);
        let parts = split(parts)?;
        if segments.len() == optional || segments.len() > SEGMENTS_MAX || parts.len() > SEGMENTS_MAX {
            return Err(format!("{path:?}: one to {SEGMENTS_MAX} names are needed"));
        }
        Ok(Layout { manager, class, optional, segments, parts })
    }

    pub fn manager(&self) -> &str {
        &self.manager
    }

    /// Whether its jobs are a resource manager's.
    pub(crate) fn is_managed(&self) -> bool {
        self.class == Class::Managed
    }

    /// Whether the directory that outlives its jobs is its alone. Directories that may be missing are others'.
    pub(crate) fn has_own_home(&self) -> bool {
        self.segments.len() - self.optional > 1
    }

    /// The patterns of the directories from the top of a hierarchy, with and without the optional ones,
    /// and how many of them lead to the directory that outlives its jobs.
    pub(crate) fn routes(&self) -> Vec<(&[Segment], usize)> {
        // A job without a directory of its own is accounted for in the shared one.
        let home = |optional: usize| optional + usize::from(self.has_own_home());
        let mut routes = vec![(&self.segments[..], home(self.optional))];
        if self.optional > 0 {
            routes.push((&self.segments[self.optional..], home(0)));
        }
        routes
    }

    pub(crate) fn parts(&self) -> &[Segment] {
        &self.parts
    }
}

/// The layouts in use: those of the configuration, then those that are built in.
#[derive(Clone, Debug)]
pub struct Layouts {
    all: Vec<Layout>,
}

impl Layouts {
    pub fn builtin() -> Layouts {
        Layouts::with(Vec::new())
    }

    /// Configured layouts come first: their author knows the machine.
    pub fn with(mut own: Vec<Layout>) -> Layouts {
        let lines =
            MANAGERS.iter().flat_map(|manager| manager.layouts.iter().map(|line| (manager.name, line)));
        let builtin = lines.filter_map(|(manager, line)| {
            let layout = Layout::of(Cow::Borrowed(manager), line.class, line.path, line.parts);
            debug_assert!(layout.is_ok(), "{}", line.path);
            layout.ok()
        });
        own.extend(builtin);
        Layouts { all: own }
    }

    /// Those by which jobs are found, in order of precedence.
    pub fn of_jobs(&self) -> impl Iterator<Item = &Layout> {
        self.all.iter().filter(|layout| layout.class != Class::Known)
    }

    /// The manager that made the cgroup with this path (with or without its mount point), if it is recognised.
    pub fn manager_of(&self, path: &Path) -> Option<&str> {
        self.layout_of(path).map(Layout::manager)
    }

    /// Whether the path is inside a job of a resource manager.
    pub fn is_managed(&self, path: &Path) -> bool {
        self.layout_of(path).is_some_and(|layout| layout.class == Class::Managed)
    }

    fn layout_of(&self, path: &Path) -> Option<&Layout> {
        self.captured(path).map(|(layout, _)| layout)
    }

    /// In any place of the path: a container shows the cgroups of others below its own.
    fn captured(&self, path: &Path) -> Option<(&Layout, Captures)> {
        let names: Vec<&[u8]> = path.components().map(|part| part.as_os_str().as_encoded_bytes()).collect();
        self.all.iter().find_map(|layout| {
            let core = &layout.segments[layout.optional..];
            let captures = names.windows(core.len()).find_map(|window| {
                let mut captures = Captures::default();
                let fits = |(name, segment): (&&[u8], &Segment)| segment.capture(name, &mut captures);
                window.iter().zip(core).all(fits).then_some(captures)
            });
            Some((layout, captures?))
        })
    }

    /// The job in which a process runs, as `slurm:1234`. Every hierarchy is searched.
    pub fn job_around(&self, host: &Host, pid: u32) -> Option<String> {
        let mut text = Vec::new();
        host.read_small(format!("/proc/{pid}/cgroup"), &mut text).ok()?;
        paths_in(&text).find_map(|path| {
            let (layout, captures) =
                self.captured(path).filter(|(layout, _)| layout.class != Class::Known)?;
            let by_process = || {
                let variable = scheduler::id_variable(captures.sluid.as_deref()?)?;
                environ::number(host, pid, variable, &mut Vec::new())
            };
            Some(format!("{}:{}", layout.manager(), captures.job_id().or_else(by_process)?))
        })
    }
}

/// What `/proc/PID/cgroup` names.
fn paths_in(text: &[u8]) -> impl Iterator<Item = &Path> {
    let paths = parse::lines(text).filter_map(|line| line.splitn(3, |&byte| byte == b':').nth(2));
    paths.map(|path| Path::new(OsStr::from_bytes(path)))
}

/// The resource manager in whose job a process runs. Every hierarchy is searched: some managers use few.
pub fn resource_manager_of(host: &Host, pid: u32) -> io::Result<Option<String>> {
    let mut text = Vec::new();
    host.read_small(format!("/proc/{pid}/cgroup"), &mut text)?;
    let layouts = Layouts::builtin();
    let mut found = paths_in(&text).filter_map(|path| layouts.layout_of(path));
    Ok(found.find(|layout| layout.class == Class::Managed).map(|layout| layout.manager().to_owned()))
}

/// The pattern of one directory's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    tokens: Vec<Token>,
    /// Instead of tokens.
    expression: Option<Expression>,
}

/// A regular expression whose first group is the id of a job.
#[derive(Clone, Debug)]
struct Expression {
    regex: Regex,
}

impl Expression {
    fn parse(text: &str) -> Result<Expression, String> {
        if text.len() > EXPRESSION_BYTES_MAX {
            return Err(format!("the expression is longer than {EXPRESSION_BYTES_MAX} bytes"));
        }
        let regex = Regex::new(text).map_err(|error| format!("{text:?}: {error}"))?;
        match regex.captures_len() {
            1 => Err(format!("{text:?} has no group for the id, such as (\\d+)")),
            _ => Ok(Expression { regex }),
        }
    }

    /// The id is a number, as all ids of the tool whose expressions these are.
    fn id<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        let id = self.regex.captures(str::from_utf8(name).ok()?)?.get(1)?.as_str().as_bytes();
        (!id.is_empty() && id.iter().all(u8::is_ascii_digit)).then_some(id)
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.regex.as_str() == other.regex.as_str()
    }
}

impl Eq for Expression {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// `*`: any characters.
    Any,
    /// Any characters, one at least.
    Some,
    /// `#`: digits.
    Digits,
    /// `^`: 64 hexadecimal digits.
    Hex64,
    /// `%`: 13 characters of Crockford's base 32.
    Base32,
    Begin(Field),
    End(Field),
}

impl Segment {
    fn parse(text: &str) -> Result<Segment, String> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while let Some(open) = rest.find('{') {
            push_glob(&rest[..open], &mut tokens);
            let close = rest[open..].find('}').ok_or_else(|| format!("{text:?}: no closing brace"))? + open;
            let (name, glob) = rest[open + 1..close].split_once(':').unwrap_or((&rest[open + 1..close], ""));
            let field = FIELDS.iter().find(|(known, _)| *known == name).map(|(_, field)| *field);
            let field = field.ok_or_else(|| {
                let names = FIELDS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
                format!("{text:?}: {{{name}}} is not one of {names}")
            })?;
            tokens.push(Token::Begin(field));
            match glob {
                "" => tokens.push(Token::Some),
                glob => push_glob(glob, &mut tokens),
            }
            tokens.push(Token::End(field));
            rest = &rest[close + 1..];
        }
        push_glob(rest, &mut tokens);
        let stars = tokens.iter().filter(|token| matches!(token, Token::Any | Token::Some)).count();
        if tokens.is_empty() || stars > STARS_MAX || text == "." || text == ".." {
            return Err(format!("{text:?} is not a name with at most {STARS_MAX} variable parts"));
        }
        Ok(Segment { tokens, expression: None })
    }

    /// A literal name.
    pub(crate) fn literal(name: &[u8]) -> Segment {
        Segment { tokens: name.iter().copied().map(Token::Byte).collect(), expression: None }
    }

    /// Whether the name matches; its fields are then added to `captures`.
    pub(crate) fn capture(&self, name: &[u8], captures: &mut Captures) -> bool {
        if let Some(expression) = &self.expression {
            let id = expression.id(name);
            id.into_iter().for_each(|id| captures.set(Field::Id, id));
            return id.is_some();
        }
        let mut found = Vec::new();
        let fits = fit(&self.tokens, name, 0, 0, &mut |field, range| found.push((field, range)));
        for (field, range) in found {
            captures.set(field, &name[range]);
        }
        fits
    }
}

fn push_glob(text: &str, tokens: &mut Vec<Token>) {
    tokens.extend(text.bytes().map(|byte| match byte {
        b'*' => Token::Any,
        b'#' => Token::Digits,
        b'^' => Token::Hex64,
        b'%' => Token::Base32,
        byte => Token::Byte(byte),
    }));
}

/// Compares from byte `at` on; the capture that is open began at `begin`. The shortest that fits is taken.
fn fit(
    tokens: &[Token],
    name: &[u8],
    at: usize,
    begin: usize,
    capture: &mut dyn FnMut(Field, Range<usize>),
) -> bool {
    let Some((token, rest)) = tokens.split_first() else { return at == name.len() };
    let text = &name[at..];
    let run = |count: usize, is_of_it: fn(&u8) -> bool| {
        text.get(..count).is_some_and(|run| run.iter().all(is_of_it)).then_some(at + count)
    };
    let next = match token {
        Token::Byte(byte) => (text.first() == Some(byte)).then_some(at + 1),
        Token::Any | Token::Some => {
            let least = usize::from(*token == Token::Some);
            return (at + least..=name.len()).any(|skip| fit(rest, name, skip, begin, capture));
        }
        Token::Digits => {
            let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
            (digits > 0).then_some(at + digits)
        }
        Token::Hex64 => run(64, u8::is_ascii_hexdigit),
        Token::Base32 => run(13, u8::is_ascii_alphanumeric),
        Token::Begin(_) => return fit(rest, name, at, at, capture),
        Token::End(field) => {
            let fits = fit(rest, name, at, begin, capture);
            if fits {
                capture(*field, begin..at);
            }
            return fits;
        }
    };
    next.is_some_and(|next| fit(rest, name, next, begin, capture))
}

#[cfg(test)]
mod tests;
