// The toasts at the bottom right: what was done, and the way back while it counts down.
import { dismiss, hold, toasts } from "../toasts";
import { Glyph, Icon } from "./Glyph";

const SIGN = { good: <Icon name="ok" />, rest: <Glyph name="rest" />, bad: <Glyph name="bad" /> };

export function Toasts() {
  const all = toasts.use();
  return (
    <div class="toasts" role="status">
      {all.map((t) => (
        <div
          class={`toast ${t.tone}`}
          key={t.id}
          onPointerEnter={() => hold(t.id, true)}
          onPointerLeave={() => hold(t.id, false)}
          onFocusIn={() => hold(t.id, true)}
          onFocusOut={() => hold(t.id, false)}
        >
          {SIGN[t.tone]}
          <span>
            <b>{t.headline}</b> {t.text}
          </span>
          {t.action && (
            <button
              type="button"
              class="btn sm"
              onClick={() => {
                dismiss(t.id);
                t.action!.act();
              }}
            >
              <Icon name="undo" />
              {t.action.label}
              {t.action.counts && (
                <span class="q n" aria-hidden="true">
                  {t.left}
                </span>
              )}
            </button>
          )}
          <button type="button" class="btn sm ico quiet" aria-label="Dismiss" onClick={() => dismiss(t.id)}>
            <Icon name="no" />
          </button>
        </div>
      ))}
    </div>
  );
}
