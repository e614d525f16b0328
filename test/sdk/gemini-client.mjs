/**
 * Generates content whole and in a stream, or uploads a file of so many bytes as its argument says. The environment names
 * `SLUICE_KEY` and `SLUICE_URL`; the responses go to stdout as JSON.
 */
import { GoogleGenAI } from '@google/genai';

const { SLUICE_KEY: apiKey, SLUICE_URL: baseUrl } = process.env;
const { files, models } = new GoogleGenAI({ apiKey, vertexai: false, httpOptions: { baseUrl } });
const [size] = process.argv.slice(2);

async function generate() {
  const config = { maxOutputTokens: 3_000 };
  const call = { model: 'gemini-3-flash', contents: 'Where does water go?', config };
  const whole = await models.generateContent(call);
  const streamed = { text: '', total: 0 };
  for await (const { text, usageMetadata } of await models.generateContentStream(call)) {
    streamed.text += text ?? '';
    streamed.total = usageMetadata?.totalTokenCount;
  }
  return [{ text: whole.text, total: whole.usageMetadata?.totalTokenCount }, streamed];
}
const upload = () => {
  const file = new Blob([Buffer.alloc(Number(size), 'a')], { type: 'text/plain' });
  return files.upload({ file, config: { mimeType: 'text/plain' } });
};
process.stdout.write(JSON.stringify(await (size === undefined ? generate() : upload())));
