//! Events and spans for `tracing`, with the feature of that name, of steps that are no part of a call that goes well.

/// As `tracing::event!` with a level's name; nothing without the feature.
#[cfg(feature = "tracing")]
macro_rules! event {
    ($level:ident, $($rest:tt)*) => {
        ::tracing::event!(target: "rpc", ::tracing::Level::$level, $($rest)*)
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! event {
    ($level:ident, $($name:ident $(= $(%)? $(?)? $value:expr)?,)* $text:literal) => {{
        $(let _ = (event!(@used $name $(= $value)?));)*
    }};
    (@used $name:ident) => { &$name };
    (@used $name:ident = $value:expr) => { &$value };
}

/// Until the end of the block, what happens on this thread is part of a span, of this name and with these fields; nothing without the feature.
#[cfg(feature = "tracing")]
macro_rules! span {
    ($($rest:tt)*) => {
        let _span = ::tracing::debug_span!(target: "rpc", $($rest)*).entered();
    };
}

#[cfg(not(feature = "tracing"))]
macro_rules! span {
    ($text:literal $(, $name:ident $(= $(%)? $(?)? $value:expr)?)*) => {
        $(let _ = (event!(@used $name $(= $value)?));)*
    };
}

pub(crate) use {event, span};
