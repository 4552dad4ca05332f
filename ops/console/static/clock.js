// The hub's time: what has a time of the hub is compared with the hub's own clock, for the browser's may say another one.

let ahead; // of the browser's count since the page was opened, which nobody sets

/** Takes the time of a message of the hub. */
export const heard = (ts) => { ahead = ts - performance.now(); };
/** What the hub's clock says now; the browser's, as long as the hub has said nothing. */
export const hubNow = () => (ahead === undefined ? Date.now() : ahead + performance.now());
