// The range of a card stretches the group `time` of its picture; what `stays` follows the scroll bar.
for (const box of document.querySelectorAll('[data-zoom]')) {
  const picture = box.querySelector('svg'), range = document.getElementById(box.dataset.zoom);
  const time = picture.querySelector('.time'), left = time.querySelector('path').getBBox().x;
  const whole = +picture.getAttribute('width'), height = picture.getAttribute('height'), words = [];
  const fine = [...time.querySelectorAll('.fine text')];
  const step = fine.length > 1 ? Math.abs(fine[1].getAttribute('x') - fine[0].getAttribute('x')) || 30 : 0;
  const key = (x, y) => `${Math.round(x)} ${Math.round(y)}`, short = {};
  for (const text of time.querySelectorAll('text')) {
    const x = +text.getAttribute('x');
    words.push([text, x, fine.includes(text) ? step : Infinity]);
    short[key(x, text.getAttribute('y'))] = text;
  }
  for (const bar of time.querySelectorAll('rect > title')) {  // labels that fit after zooming
    const { x, y, width, height } = bar.parentNode.getBBox(), label = /: (.*): .* from .* on$/.exec(bar.textContent);
    if (!label || height < 12.5 || width * 32 < 20 || width > label[1].length * 5.9 + 4) continue;
    const text = document.createElementNS('http://www.w3.org/2000/svg', 'text');
    const [r, g, b] = getComputedStyle(bar.parentNode).fill.match(/\d+/g);
    text.textContent = label[1];
    text.setAttribute('style', 'font-size: 9.5px; text-anchor: middle; pointer-events: none; visibility: hidden');
    for (const [name, value] of [['x', x + width / 2], ['y', y + height / 2 + 3.5],
      ['fill', .299 * r + .587 * g + .114 * b > 140 ? '#1f2933' : '#ffffff']]) text.setAttribute(name, value);
    words.push([text, x + width / 2, width, short[key(x + width / 2, y + height / 2 + 3.5)]]);
    time.append(text);
  }
  const draw = () => {
    const z = 2 ** range.value, width = left + (whole - left) * z;
    picture.setAttribute('width', width);
    picture.setAttribute('viewBox', `0 0 ${width} ${height}`);
    picture.querySelector('rect').setAttribute('width', width);
    time.setAttribute('transform', `matrix(${z} 0 0 1 ${left * (1 - z)} 0)`);
    for (const [text, x, room, shorter] of words) {
      const fits = room * z >= text.textContent.length * 5.9 + 4;
      text.setAttribute('transform', `matrix(${1 / z} 0 0 1 ${x * (1 - 1 / z)} 0)`);
      if (room < Infinity) text.style.visibility = fits ? 'visible' : 'hidden';
      if (shorter) shorter.style.visibility = fits ? 'hidden' : 'visible';
    }
  };
  range.addEventListener('input', () => {
    const middle = (box.scrollLeft + box.clientWidth / 2 - left) / (+picture.getAttribute('width') - left);
    draw();
    box.scrollLeft = left + middle * (+picture.getAttribute('width') - left) - box.clientWidth / 2;
  });
  box.addEventListener('scroll', () => picture.querySelectorAll('.stays').forEach(
    e => e.setAttribute('transform', `translate(${box.scrollLeft} 0)`)));
}
