// What a picture tells is reached by mouse, touch and keyboard; charts of time are enlarged; light or dark is chosen.
(() => {
  const root = document.documentElement, tip = document.createElement('div');
  tip.id = 'tip';
  tip.setAttribute('role', 'status');
  document.body.append(tip);

  // Light or dark: as the system has it, until the button says otherwise.
  const kept = name => { try { return localStorage.getItem(name); } catch { return null; } };
  const scheme = name => {
    root.style.colorScheme = name || '';
    for (const button of document.querySelectorAll('[data-theme]')) button.textContent = name || 'auto';
  };
  const NEXT = { '': 'dark', dark: 'light', light: '' };
  scheme(kept('theme') || '');

  // A tooltip is the <title> of a shape; it moves to an attribute, so that a browser shows none of its own.
  const told = shape => {
    const title = shape.querySelector(':scope > title');
    if (title) { shape.dataset.tip = title.textContent; title.remove(); }
    return shape.dataset.tip;
  };
  const shapeAt = target => {
    let at = target instanceof Element ? target : null;
    for (; at && at.closest('svg'); at = at.parentElement) if (at.getAttribute('role') !== 'img' && told(at)) return at;
    return target instanceof Element ? target.closest('[data-tip]') : null;
  };
  let here = null;
  const show = shape => {
    here?.classList.remove('here');
    here = shape;
    tip.textContent = shape ? told(shape) : '';
    if (!shape) return;
    const box = shape.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, box.left + Math.min(box.width, 60) / 2), innerWidth - size.width - 8);
    const below = box.bottom + 8 + size.height < innerHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${below ? box.bottom + 8 : Math.max(8, box.top - size.height - 8)}px`;
  };
  document.addEventListener('pointerover', event => { if (event.pointerType === 'mouse') show(shapeAt(event.target)); });
  document.addEventListener('click', event => {
    const button = event.target.closest('button');
    if (button?.hasAttribute('data-theme')) {
      const name = NEXT[kept('theme') || ''];
      try { localStorage.setItem('theme', name); } catch { /* a page from a file may keep nothing */ }
      scheme(name);
    } else if (button?.dataset.by)
      zoom(document.querySelector(`[data-zoom="${button.dataset.of}"]`), +button.dataset.by);
    else show(shapeAt(event.target));
  });

  // Keyboard: arrows go from shape to shape of a picture that has the focus.
  const shapes = picture => [...picture.querySelectorAll('*')].filter(
    one => one.dataset.tip || one.querySelector(':scope > title'));
  const step = (picture, key) => {
    const all = shapes(picture), at = all.indexOf(here);
    if (!all.length) return;
    if (at < 0) return show(all[0]);
    if (key === 'ArrowRight' || key === 'ArrowLeft')
      return show(all[(at + (key === 'ArrowRight' ? 1 : all.length - 1)) % all.length]);
    const box = here.getBoundingClientRect(), down = key === 'ArrowDown' ? 1 : -1;
    const far = one => { const b = one.getBoundingClientRect(); return [down * (b.top - box.top), Math.abs(b.left - box.left)]; };
    const next = all.map(one => [one, ...far(one)]).filter(one => one[1] > 4).sort((a, b) => a[1] - b[1] || a[2] - b[2]);
    if (next.length) show(next[0][0]);
  };
  document.addEventListener('keydown', event => {
    if (event.key === 'Escape') return show(null);
    const picture = event.target.closest?.('svg[tabindex]');
    if (!picture) return;
    if (event.key.startsWith('Arrow')) {
      step(picture, event.key);
      here?.classList.add('here');
      event.preventDefault();
    } else if ('+-0'.includes(event.key)) zoom(picture.closest('.chart'), { '+': 2, '-': 0.5, 0: 0 }[event.key]);
  });

  // Enlarging: a chart of time becomes wider than its card, around the middle or the pointer.
  const zooms = {};
  const size = card => {
    const picture = card.querySelector(':scope > svg'), z = zooms[card.dataset.zoom] || 1;
    if (picture) { picture.style.width = `${100 * z}%`; stay(card); }
  };
  const stay = card => card.querySelectorAll('.stays').forEach(
    one => one.setAttribute('transform', `translate(${card.scrollLeft} 0)`));
  const zoom = (card, by, at = 0.5) => {
    if (!card?.dataset.zoom) return;
    const before = zooms[card.dataset.zoom] || 1, after = by ? Math.min(64, Math.max(1, before * by)) : 1;
    const x = card.clientWidth * at, place = (card.scrollLeft + x) / before;
    zooms[card.dataset.zoom] = after;
    size(card);
    card.scrollLeft = place * after - x;
  };
  const pointers = new Map();
  const apart = () => { const [a, b] = [...pointers.values()]; return Math.abs(a.clientX - b.clientX) + 20; };
  let pinched = 0;
  const chart = event => event.target.closest?.('.chart[data-zoom]');
  document.addEventListener('wheel', event => {
    const card = chart(event);
    if (!card || !event.ctrlKey) return;
    event.preventDefault();
    zoom(card, 2 ** (-event.deltaY / 200), (event.clientX - card.getBoundingClientRect().left) / card.clientWidth);
  }, { passive: false });
  document.addEventListener('pointerdown', event => {
    if (event.pointerType === 'touch' && chart(event)) pointers.set(event.pointerId, event);
    pinched = pointers.size === 2 ? apart() : 0;
  });
  document.addEventListener('pointermove', event => {
    if (!pointers.has(event.pointerId)) return;
    pointers.set(event.pointerId, event);
    if (pinched) { zoom(chart(event), apart() / pinched); pinched = apart(); }
  });
  for (const name of ['pointerup', 'pointercancel']) document.addEventListener(name, event => pointers.delete(event.pointerId));
  document.addEventListener('scroll', event => { if (event.target.dataset?.zoom) stay(event.target); }, true);

  // Pictures that are here, and those that take their places while a run is watched.
  const prepare = () => {
    document.querySelectorAll('svg[role=img]').forEach(picture => { picture.tabIndex = 0; told(picture); picture.ariaLabel ||= picture.dataset.tip; });
    document.querySelectorAll('.chart[data-zoom]').forEach(size);
    if (here && !here.isConnected) show(null);
  };
  prepare();
  let due = 0;
  new MutationObserver(() => { due ||= requestAnimationFrame(() => { due = 0; prepare(); }); })
    .observe(document.body, { childList: true, subtree: true });
})();
